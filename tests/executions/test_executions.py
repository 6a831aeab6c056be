"""Executions: one for each attempt of a phase, and executions that callers record themselves."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.kinds import KINDS
from tests.threads.support import AGENT_NAMES, AGENTS, POLICY, age, open_storage

from perdure.executions.model import ExecutionSeed, NewPhase, get_outcome, is_soft
from perdure.executions.operations import (
    DAY,
    HOUR,
    ExecutionFinish,
    ExecutionProgress,
    ExecutionUsage,
    close_attempts,
    mark_failed,
    outputs,
    record_progress,
    skip,
)
from perdure.executions.records import Execution
from perdure.executions.service import Executions
from perdure.kernel.clock import to_iso
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import AttemptEnd
from perdure.runs.queue import RunQueue
from perdure.runtime.phases import ThreadPhases
from perdure.testing.clock import ManualClock
from perdure.threads.records import Failure
from perdure.threads.service import Threads
from perdure.threads.work import Assignment, Ending


def seed(skill: str = "build:plan", **fields: Any) -> ExecutionSeed:
    given: dict[str, Any] = {"trigger_type": "api", "trigger_id": "acme/app#7", "workflow_run_id": "w1"}
    return ExecutionSeed(skill=skill, **(given | fields))


class House:
    """The executions of a database, with their phases and a manual clock."""

    def __init__(self, url: str) -> None:
        namespace = f"test {uuid.uuid4().hex}"
        self.clock = ManualClock()
        self.storage = open_storage(url, clock=self.clock)
        self.executions = Executions(self.storage, namespace=namespace)
        self.threads = Threads(self.storage, KINDS, policy=POLICY, namespace=namespace)
        self.queue = RunQueue.beside(self.threads)
        self.phases = ThreadPhases(KINDS, POLICY)

    async def phase(self, execution: ExecutionSeed, **fields: Any) -> str:
        new = NewPhase(input="{}", agent="echo", execution=execution, **fields)
        (rollout_id,) = await self.queue.write(self.phases.create, [new])
        assert isinstance(rollout_id, str)
        return rollout_id

    async def take(self) -> Assignment:
        (taken,) = await self.queue.claim("w1", AGENT_NAMES, 1, 0, ["workflows"])
        return taken

    async def finish(self, taken: Assignment, **ending: Any) -> None:
        await self.queue.finish(Ending(held=taken.held, **({"result": "success"} | ending)))

    async def cancel(self, rollout_id: str) -> None:
        async def cancel(tx: Tx) -> None:
            await self.phases.cancel(tx, await self.phases.load(tx, [rollout_id]))

        await self.queue.write(cancel)

    async def all(self) -> list[Execution]:
        """Return all executions, the oldest first."""
        return [*reversed((await self.executions.list()).items)]


@pytest.fixture
async def house(shared_engine_url: str) -> AsyncIterator[House]:
    made = House(shared_engine_url)
    await made.queue.register("w1", AGENTS)
    yield made
    await made.queue.close()
    await made.storage.close()


def shown(record: Any, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name in names)


# --- with attempts ----------------------------------------------------------------------------------------


async def test_an_attempt_opens_its_execution_and_its_end_closes_it(house: House) -> None:
    made = await house.phase(seed(label="plan", repo="acme/app", issue_number=7), parent="w1")
    assert await house.all() == []
    taken = await house.take()
    (row,) = await house.all()
    assert shown(row, "skill", "label", "repo", "issue_number", "workflow_run_id") == (
        "build:plan",
        "plan",
        "acme/app",
        7,
        "w1",
    )
    assert shown(row, "rollout_id", "attempt_id", "success", "finished_at") == (
        made,
        taken.attempt_id,
        None,
        None,
    )
    assert row.session_id == taken.run.thread_id
    await house.finish(taken, output_text="the plan", turns=2, api_duration_ms=30)
    done = await house.executions.get(row.execution_id)
    assert shown(done, "success", "stop_reason", "error", "turns", "api_duration_ms") == (
        True,
        "success",
        None,
        2,
        30,
    )
    assert (done.output_text, await house.executions.get_output(row.execution_id)) == ("the plan", "the plan")
    assert done.duration_ms is not None
    assert done.finished_at is not None


async def test_every_way_to_end_closes_an_execution(house: House) -> None:
    async def ended(**limits: Any) -> Assignment:
        await house.phase(seed(), **limits)
        return await house.take()

    failure = Failure(error="ValueError", message="no such city")
    taken = await ended(max_attempts=2, retry_seconds=0.0)
    await house.finish(taken, result="error", error=failure, stop_reason="error_exit_3")
    await house.finish(await house.take(), result="timeout", error=failure)
    await house.queue.hand_back([(await ended()).held])
    cancelled = await house.take()
    await house.cancel(cancelled.run.run_id)
    assert [each.success for each in (await house.all())[-1:]] == [None]
    await house.finish(cancelled, result="stopped")
    await house.finish(await ended(), result="error", error=failure, output_text="half of it")
    rows = [shown(each, "success", "stop_reason", "error") for each in await house.all()]
    assert rows == [
        (False, "error_exit_3", "ValueError: no such city"),
        (False, "error_fatal", "ValueError: no such city"),
        (False, "released", "handed back by its worker"),
        (False, "error_fatal", "cancelled"),
        (False, "error_fatal", "ValueError: no such city"),
    ]
    figures = (await house.executions.stats()).all
    assert (figures.total, figures.failed, figures.deferred, figures.succeeded) == (5, 4, 1, 0)


async def test_a_lost_worker_closes_its_execution_with_what_it_has_cost(house: House) -> None:
    made = await house.phase(seed(), free_lapses=1)
    taken = await house.take()
    usage = ExecutionUsage(cost_usd=0.25, input_tokens=100, output_tokens=20, turns=1)
    progress = ExecutionProgress(rollout_id=made, attempt_id=taken.attempt_id, session_id="s-1", usage=usage)
    await house.queue.write(record_progress, [progress])
    await house.queue.write(record_progress, [ExecutionProgress(rollout_id=made, attempt_id="at-another")])
    if house.storage.engine == "sqlite":
        house.clock.advance(61)
    else:
        await age(house.storage, 61, await house.queue.ns())
    await house.threads.watchdog.sweep()
    (row,) = await house.all()
    assert shown(row, "success", "error", "session_id", "cost_usd", "input_tokens", "turns") == (
        False,
        "the worker that executed it stopped sending heartbeats",
        "s-1",
        0.25,
        100,
        1,
    )
    await house.finish(await house.take())
    assert [each.success for each in await house.all()] == [False, True]
    figures = (await house.executions.stats()).all
    assert (figures.total, figures.failed, figures.cost_usd) == (2, 1, 0.25)


async def test_what_is_said_of_an_earlier_attempt_does_not_touch_the_execution_of_a_later_one(
    house: House,
) -> None:
    """Each attempt has its own execution: another attempt neither ends it nor adds to its figures."""
    rollout_id = await house.phase(seed(), max_attempts=2, retry_seconds=0.0)
    first = await house.take()
    await house.finish(first, result="error", error=Failure(error="ValueError", message="no such city"))
    second = await house.take()
    usage = ExecutionUsage(cost_usd=9.0, input_tokens=900)
    late = ExecutionProgress(
        rollout_id=rollout_id, attempt_id=first.attempt_id, session_id="late", usage=usage
    )
    await house.queue.write(record_progress, [late])
    end = AttemptEnd(
        rollout_id=rollout_id,
        attempt_id=first.attempt_id,
        sequence_id=1,
        status="failed",
        reason=None,
        charged=True,
        worker_id="w1",
        start_time=0,
        rollout_status="running",
        outcome=None,
        queue="workflows",
        line=None,
        parent=None,
    )

    async def tell(tx: Tx) -> None:
        (attempt,) = await close_attempts(tx, [end])
        assert attempt.execution is None

    await house.queue.write(tell)
    _, going = await house.all()
    assert shown(going, "attempt_id", "success", "finished_at", "session_id", "cost_usd", "input_tokens") == (
        second.attempt_id,
        None,
        None,
        second.run.thread_id,
        None,
        None,
    )
    await house.finish(second, output_text="done")
    assert [each.success for each in await house.all()] == [False, True]


async def test_a_skipped_phase_has_an_execution_that_never_ran(house: House) -> None:
    (skipped,) = await house.queue.write(skip, [seed("build:test")], "trigger rule not satisfied")
    row = await house.executions.get(skipped)
    assert shown(row, "success", "stop_reason", "error", "session_id") == (
        False,
        "skipped",
        "trigger rule not satisfied",
        None,
    )
    assert await house.executions.readiness("build:test", "acme/app#7", "w1") == "run"
    assert (await house.executions.stats()).all.skipped == 1


async def test_a_skill_is_done_by_itself_and_by_no_other(house: House) -> None:
    for other in ("build:a", "build:z"):
        await house.phase(seed(other))
        await house.finish(await house.take(), output_text="done")
    for run in ("w1", None):
        found = [
            await house.executions.readiness(skill, "acme/app#7", run)
            for skill in ("build:a", "build:m", "build:z")
        ]
        assert found == ["done", "run", "done"]


async def test_a_business_failure_takes_back_a_technical_success(house: House) -> None:
    await house.phase(seed())
    await house.finish(await house.take(), output_text="BLOCKED", turns=3)
    (row,) = await house.all()
    assert await house.executions.readiness("build:plan", "acme/app#7") == "done"
    assert await house.queue.write(mark_failed, [row.execution_id], "blocked") == 1
    assert await house.executions.readiness("build:plan", "acme/app#7") == "run"
    figures = (await house.executions.stats()).all
    assert (figures.total, figures.succeeded, figures.failed, figures.turns) == (1, 0, 1, 3)
    assert await house.queue.read(outputs, [row.execution_id, "unknown"]) == {row.execution_id: "BLOCKED"}
    with pytest.raises(NotFound):
        await house.queue.write(mark_failed, ["unknown"], "blocked")


# --- as callers record them -------------------------------------------------------------------------------


async def test_an_execution_is_recorded_step_by_step(house: House) -> None:
    executions = house.executions
    started = await executions.record_start(seed())
    assert await executions.is_running("build:plan", "acme/app#7")
    await executions.record_session_id(started, "session-1")
    await executions.record_output_text(started, "so far")
    usage = ExecutionUsage(cost_usd=0.5, turns=4)
    await executions.record_finish(started, ExecutionFinish(success=True, stop_reason="success", usage=usage))
    await executions.record_finish(started, ExecutionFinish(success=False, error="late", duration_ms=12))
    row = await executions.get(started)
    assert shown(row, "success", "error", "stop_reason", "cost_usd", "turns", "duration_ms") == (
        False,
        "late",
        "success",
        0.5,
        4,
        12,
    )
    assert (row.session_id, row.output_text) == ("session-1", "so far")
    figures = (await executions.stats()).all
    assert (figures.total, figures.failed, figures.cost_usd, figures.duration_ms) == (1, 1, 0.5, 12)
    for bad in (
        executions.record_session_id(started, "../x"),
        executions.record_output_text(started, "x" * ((1 << 20) + 1)),
    ):
        with pytest.raises(InvalidInput):
            await bad


async def test_stale_executions_are_marked_as_failed(house: House) -> None:
    executions = house.executions
    first, other = seed(), seed("build:test")
    for each in (first, first, other, seed(workflow_run_id="w2")):
        await executions.record_start(each)
    await house.phase(seed())
    await house.take()
    assert await executions.mark_stale_failed("build:test", "acme/app#7", "stale") == 1
    assert await executions.mark_all_stale_failed("acme/app#7", "stale", "w1") == 2
    assert await executions.mark_all_stale_failed("acme/app#7", "restarted") == 1
    (left,) = await executions.running()
    assert left.attempt_id is not None
    errors = [each.error for each in await house.all()]
    assert sorted(filter(None, errors)) == ["restarted", "stale", "stale", "stale"]


async def test_the_newest_execution_is_marked_as_failed(house: House) -> None:
    executions = house.executions
    for _ in range(2):
        await executions.record_finish(await executions.record_start(seed()), ExecutionFinish(success=True))
    assert await executions.mark_latest_failed("build:plan", "acme/app#7", "blocked", "w1") == 1
    assert [each.success for each in await house.all()] == [True, False]
    assert await executions.is_completed("build:plan", "acme/app#7")
    assert await executions.mark_latest_failed("build:plan", "acme/app#7", "blocked", "w9") == 0


async def test_an_execution_that_goes_on_does_not_fail_in_hindsight(house: House) -> None:
    executions = house.executions
    going = await executions.record_start(seed())
    assert await executions.mark_latest_failed("build:plan", "acme/app#7", "blocked") == 0
    assert await executions.is_running("build:plan", "acme/app#7")
    assert (await executions.stats()).all.failed == 0
    await executions.record_finish(going, ExecutionFinish(success=True))
    figures = (await executions.stats()).all
    assert (figures.total, figures.succeeded, figures.failed) == (1, 1, 0)


async def test_failures_in_a_row_end_at_the_first_that_is_none(house: House) -> None:
    executions = house.executions

    async def end(success: bool, stop_reason: str | None = None) -> None:
        started = await executions.record_start(seed())
        await executions.record_finish(started, ExecutionFinish(success=success, stop_reason=stop_reason))

    assert await executions.consecutive_failures("build:plan") == 0
    await end(True)
    for _ in range(3):
        await end(False, "error_fatal")
    await executions.record_start(seed())
    assert await executions.consecutive_failures("build:plan") == 3
    await end(False, "skipped")
    assert await executions.consecutive_failures("build:plan") == 0


# --- lists ------------------------------------------------------------------------------------------------


async def test_lists_page_by_cursor_and_filter_by_one_thing(house: House) -> None:
    executions = house.executions
    made = [
        await executions.record_start(seed(f"build:{number % 2}", workflow_run_id=f"w{number % 3}"))
        for number in range(7)
    ]
    pages, cursor = [], None
    while True:
        page = await executions.list(limit=3, cursor=cursor)
        pages += [each.execution_id for each in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert pages == made[::-1]
    assert [each.execution_id for each in (await executions.list(skill="build:1")).items] == made[1::2][::-1]
    assert [each.execution_id for each in (await executions.list(workflow_run_id="w0")).items] == [
        made[6],
        made[3],
        made[0],
    ]
    assert len((await executions.list(trigger_id="acme/app#7")).items) == 7
    assert [each.execution_id for each in await executions.recent("build:0", 1)] == [made[6]]
    await executions.record_finish(made[6], ExecutionFinish(success=True))
    assert [each.execution_id for each in await executions.running(2)] == [made[5], made[4]]
    for bad in (
        executions.list(skill="a", trigger_id="b"),
        executions.list(running=True, skill="a"),
        executions.list(cursor="nonsense"),
        executions.daily_stats(days=91),
        executions.hourly_stats(hours=0),
    ):
        with pytest.raises(InvalidInput):
            await bad
    assert (await executions.list(limit=0)).items == []


async def test_the_executions_of_a_workflow_run_come_in_their_order(house: House) -> None:
    executions = house.executions
    first, second = [await executions.record_start(seed(f"build:{name}")) for name in ("a", "b")]
    old = await executions.record_start(seed("build:old", workflow_run_id=None))
    await executions.record_start(seed("other:old", workflow_run_id=None))
    await executions.record_start(seed(workflow_run_id="w2"))

    async def found(**options: Any) -> list[str]:
        page = await executions.of_workflow_run("w1", **options)
        return [each.execution_id for each in page.items]

    assert await found() == [first, second]
    assert await found(trigger_id="acme/app#7", workflow="build") == [first, second, old]
    page = await executions.of_workflow_run("w1", limit=1)
    assert await found(cursor=page.next) == [second]


# --- statistics and chats ---------------------------------------------------------------------------------


async def test_statistics_have_every_hour_and_day_and_count_by_skill_and_trigger(house: House) -> None:
    executions = house.executions

    async def end(skill: str, success: bool, **usage: Any) -> None:
        started = await executions.record_start(seed(skill, trigger_type="cron" if success else "api"))
        await executions.record_finish(
            started, ExecutionFinish(success=success, usage=ExecutionUsage(**usage))
        )

    await end("build:plan", True, cost_usd=0.5, input_tokens=10)
    await end("build:plan", False, output_tokens=5)
    await executions.record_start(seed("chat", trigger_type="chat"))
    hours, days = await executions.hourly_stats(hours=3), await executions.daily_stats(days=2)
    now = await house.queue.read(_now)
    assert [each.at for each in hours] == [to_iso(now - back * 3_600_000_000)[:13] for back in (2, 1, 0)]
    assert [each.at for each in days] == [to_iso(now - back * 86_400_000_000)[:10] for back in (1, 0)]
    assert [shown(each, "total", "succeeded", "failed", "cost_usd") for each in hours] == [
        (0, 0, 0, 0.0),
        (0, 0, 0, 0.0),
        (3, 1, 1, 0.5),
    ]
    assert [each.total for each in days] == [0, 3]
    stats = await executions.stats()
    assert (stats.all.total, stats.today.total, stats.running) == (3, 3, 1)
    assert {name: each.total for name, each in stats.by_trigger.items()} == {"api": 1, "cron": 1}
    plan = stats.by_skill["build:plan"]
    assert shown(plan, "total", "succeeded", "failed", "input_tokens", "output_tokens") == (2, 1, 1, 10, 5)
    assert await executions.stats_by_skill(days=1) == stats.by_skill
    await executions.record_start(seed("build:test"))
    await end("other:plan", True)
    build = (await executions.stats_by_workflow(days=1))["build"]
    assert shown(build, "total", "succeeded", "failed", "cost_usd") == (2, 1, 1, 0.5)
    for buckets in (
        await executions.hourly_stats(hours=2, workflow="build"),
        await executions.daily_stats(days=2, workflow="build"),
    ):
        assert [shown(each, "total", "succeeded", "failed") for each in buckets] == [(0, 0, 0), (3, 1, 1)]
    assert [each.total for each in await executions.daily_stats(days=1, workflow="nothing")] == [0]


async def test_an_execution_counts_in_the_hour_and_the_day_of_its_start(house: House) -> None:
    """The sums of an hour then equal those of the executions that a list shows in it."""
    if house.storage.engine == "sqlite":
        now = await house.queue.read(_now)
        house.clock.advance((DAY - now % DAY) / 1e6 - 60.0)
    started = await house.executions.record_start(seed())
    if house.storage.engine == "sqlite":
        house.clock.advance(3600.0)
    else:
        await house.queue.write(_begin_earlier, started)
    await house.executions.record_finish(started, ExecutionFinish(success=True))
    begun = (await house.executions.get(started)).started_at
    hours = {each.at: each.total for each in await house.executions.hourly_stats(hours=3)}
    assert {at for at, total in hours.items() if total} == {begun[:13]}
    days = {each.at: each.total for each in await house.executions.daily_stats(days=3)}
    assert {at for at, total in days.items() if total} == {begun[:10]}
    assert list(await house.executions.stats_by_skill(days=3)) == ["build:plan"]


async def test_sums_of_days_have_those_days_and_no_earlier_one(house: House) -> None:
    begun = [await house.executions.record_start(seed(f"build:{back}")) for back in range(3)]
    for back, execution_id in enumerate(begun):
        await house.queue.write(_begin_earlier, execution_id, back * DAY)
        await house.executions.record_finish(execution_id, ExecutionFinish(success=True))
    for days in (1, 2, 3):
        found = await house.executions.stats_by_skill(days=days)
        assert sorted(found) == [f"build:{back}" for back in range(days)]
        assert (await house.executions.stats_by_workflow(days=days))["build"].total == days


BEGIN_EARLIER = statement("UPDATE executions SET started_at = started_at - :age WHERE ns = :ns AND id = :id")


async def _begin_earlier(tx: Tx, execution_id: str, age: int = HOUR) -> None:
    await tx.execute(BEGIN_EARLIER, age=age, id=execution_id)


async def _now(tx: Tx) -> int:
    return tx.now


async def test_chats_sum_up_their_turns(house: House) -> None:
    executions = house.executions

    async def turn(chat: str, text: str, cost: float) -> str:
        started = await executions.record_start(seed("chat", trigger_id=chat, workflow_run_id=None))
        house.clock.advance(5.0)
        usage = ExecutionUsage(cost_usd=cost, input_tokens=10, output_tokens=1)
        await executions.record_finish(started, ExecutionFinish(success=True, output=text, usage=usage))
        return started

    await turn("slack:a", "hello", 0.25)
    await turn("slack:b", "hi", 1.0)
    first = await executions.get_chat_thread("slack:a")
    house.clock.advance(60.0)
    last = await turn("slack:a", "bye " + "x" * 2000, 0.5)
    page = await executions.list_chat_threads(limit=1)
    (chat,) = page.items
    assert shown(chat, "trigger_id", "turns", "cost_usd", "input_tokens", "last_execution_id") == (
        "slack:a",
        2,
        0.75,
        20,
        last,
    )
    assert (chat.first_at, chat.last_at) == (first.first_at, (await executions.get(last)).finished_at)
    assert chat.last_at > first.last_at
    assert chat.last_text is not None
    assert (chat.last_text[:4], len(chat.last_text)) == ("bye ", 1000)
    rest = await executions.list_chat_threads(cursor=page.next)
    assert [each.trigger_id for each in rest.items] == ["slack:b"]
    assert await executions.get_chat_thread("slack:a") == chat
    with pytest.raises(NotFound):
        await executions.get_chat_thread("slack:c")


def test_outcomes_and_soft_failures() -> None:
    assert [
        get_outcome(*each) for each in ((1, "success"), (0, "skipped"), (0, "error_quota"), (0, None))
    ] == [
        "succeeded",
        "skipped",
        "deferred",
        "failed",
    ]
    # A check whose condition is not met has succeeded, because it ran.
    assert get_outcome(1, "condition_not_met") == "succeeded"
    reasons = ("unknown", "error_truncated", "error_fatal", "error_exit_1", None)
    assert [is_soft(False, reason) for reason in reasons] == [True, True, False, False, False]
    assert not is_soft(True, "unknown")
    assert not is_soft(None, "unknown")
