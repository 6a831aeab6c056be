"""The scheduler: firings that run until what they started has ended, overlap, misfires, jitter, triggers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kernel.support import until_true
from tests.schedules.support import TARGETS, YEARLY, ScheduleWorld
from tests.support.kinds import KINDS

from perdure.kernel.errors import Conflict, InvalidCron, InvalidInput, InvalidTimezone, JobNotFound
from perdure.kernel.storage.dialect import statement
from perdure.rollouts.service import Rollouts
from perdure.schedules.model import FIRING, LATE, SCHEDULER, compute_jitter, skip_event, status_after
from perdure.schedules.records import Schedule
from perdure.schedules.timer import ScheduleTimer
from perdure.service.callers import Caller
from perdure.threads.records import Failure

HOUR = 3600.0
ROWS = statement("SELECT id, next_at, due_at FROM schedules WHERE ns = :ns")


async def finish(world: ScheduleWorld, result: Any = "success", **rest: Any) -> None:
    """End the one run that is ready."""
    await world.finish((await world.take()).held, result, **rest)


# --- the tables -------------------------------------------------------------------------------------------


def test_a_firing_goes_through_the_chart() -> None:
    walks = {
        ("paused",): "paused",
        ("not paused", "overlap"): "skipped",
        ("not paused", "started"): "running",
        ("not paused", "started", "succeeded"): "success",
        ("not paused", "started", "failed"): "failed",
        ("not paused", "refused"): "failed",
    }
    for events, status in walks.items():
        assert status_after(*events) == status
        assert FIRING.step(status, "recorded") == ("running" if status == "running" else "completed")
    assert {each.event for each in SCHEDULER} == {"start", "stop", "firings have ended"}


# --- running until the end --------------------------------------------------------------------------------


async def test_a_firing_runs_until_what_it_started_has_ended(world: ScheduleWorld) -> None:
    made = await world.cron(name="report")
    await world.fire(made)
    (firing,) = await world.history(made)
    assert (firing.status, firing.ended_at, firing.source) == ("running", None, "schedule")
    status = await world.job("report")
    assert (status.is_running, status.run_count, status.last_result) == (True, 1, None)
    await world.advance(90)
    await finish(world)
    (firing,) = await world.history(made)
    assert (firing.status, firing.error) == ("success", None)
    assert firing.duration == pytest.approx(90, abs=20)
    assert firing.ended_at == pytest.approx(firing.fired_at + (firing.duration or 0))
    status = await world.job("report")
    assert (status.is_running, status.last_result, status.error_count) == (False, "success", 0)
    assert status.last_duration_ms == pytest.approx((firing.duration or 0) * 1000, abs=1)


async def test_a_failure_counts_and_its_message_is_kept(world: ScheduleWorld) -> None:
    made = await world.cron(name="report")
    await world.fire(made)
    held = (await world.take()).held
    await world.finish(held, "error", error=Failure(error="ValueError", message="no figures"))
    status = await world.job("report")
    assert (status.run_count, status.error_count, status.last_result) == (1, 1, "failed")
    assert status.last_error == "ValueError: no figures"
    shown = await world.schedules.get("report")
    assert (shown.failed, shown.refused, shown.error) == (1, 0, "ValueError: no figures")
    await world.fire(made)
    await finish(world)
    status = await world.job("report")
    assert (status.run_count, status.error_count, status.last_result) == (2, 1, "success")
    assert (await world.schedules.get("report")).error is None


async def test_the_next_firing_settles_the_one_before(world: ScheduleWorld) -> None:
    made = await world.cron(overlap="skip")
    await world.fire(made)
    await finish(world)
    again = await world.fire(made)
    assert (again.fired, again.skipped, again.running) == (2, 0, 1)


async def test_hints_settle_a_firing(world: ScheduleWorld) -> None:
    await world.timer.start()
    made = await world.cron()
    await world.come(made)
    await world.schedules.update(made.schedule_id, metadata={"look": 1})

    async def running(wanted: int) -> bool:
        return (await world.schedules.get(made.schedule_id)).running == wanted

    await until_true(lambda: running(1))
    await finish(world)
    await until_true(lambda: running(0))


async def test_a_restart_settles_what_ended_meanwhile_and_follows_the_rest(world: ScheduleWorld) -> None:
    ended, going = await world.cron(payload={"input": 1}), await world.cron(payload={"input": 2})
    await world.come(going)
    await world.timer.fire_due()
    claimed = {each.run.kwargs.input: each.held for each in await world.claim()}
    await world.finish(claimed[1])
    again = ScheduleTimer(world.storage, TARGETS)
    await again.start()

    async def running(schedule: Schedule, wanted: int) -> bool:
        return (await world.schedules.get(schedule.schedule_id)).running == wanted

    try:
        await until_true(lambda: running(ended, 0))
        assert await running(going, 1)
        await world.finish(claimed[2])
        await until_true(lambda: running(going, 0))
    finally:
        await again.stop()


async def test_what_was_removed_has_no_result(world: ScheduleWorld) -> None:
    thread_id = await world.thread()
    made = await world.cron(thread_id=thread_id, overlap="skip")
    await world.fire(made)
    await world.threads.delete_thread(thread_id)
    await world.advance(2000)
    await world.threads.purge()
    (firing,) = await world.history(made)
    assert (firing.status, (await world.schedules.get(made.schedule_id)).running) == ("completed", 0)


# --- overlap and pause ------------------------------------------------------------------------------------


async def test_an_overlap_is_skipped_and_does_not_touch_what_runs(world: ScheduleWorld) -> None:
    made = await world.cron(name="slow", overlap="skip")
    await world.fire(made)
    again = await world.fire(made)
    assert (again.fired, again.skipped, again.running, len(await world.runs())) == (1, 1, 1, 1)
    newest, oldest = await world.history(made)
    assert (newest.status, newest.skipped, newest.started_id) == ("skipped", "overlap", None)
    assert (oldest.status, oldest.skipped) == ("running", None)
    status = await world.job("slow")
    assert (status.is_running, status.run_count, status.error_count) == (True, 2, 0)
    assert (status.last_result, status.last_error) == ("skipped", "overlap")
    # The guard is the row of the firing: another process sees it too.
    other = ScheduleTimer(world.storage, TARGETS)
    await world.come(made)
    await other.fire_due()
    assert (await world.schedules.get("slow")).skipped == 2
    await finish(world, "error")
    assert (await world.fire(made)).fired == 2


async def test_concurrent_firings_do_not_wait(world: ScheduleWorld) -> None:
    made = await world.cron(overlap="concurrent")
    await world.fire(made)
    again = await world.fire(made)
    assert (again.fired, again.running, again.skipped) == (2, 2, 0)


async def test_the_times_of_a_paused_schedule_are_skipped(world: ScheduleWorld) -> None:
    made = await world.cron(name="quiet")
    paused = await world.schedules.pause("quiet")
    assert (paused.enabled, paused.next_at) == (False, None)
    assert made.next_at is not None
    await world.advance(made.next_at - await world.now() + 1)
    again = ScheduleTimer(world.storage, TARGETS)
    await again.fire_due()
    status = await world.job("quiet")
    assert (status.is_paused, status.next_run, status.run_count) == (True, None, 1)
    assert (status.last_result, status.last_error) == ("skipped", "paused")
    assert await world.runs() == []
    resumed = await world.schedules.resume("quiet")
    assert resumed.next_at is not None
    assert (await world.fire(resumed)).fired == 1


# --- misfires ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("misfire", ["once", "skip", "all"])
async def test_times_that_were_missed(world: ScheduleWorld, misfire: str) -> None:
    made = await world.cron("0 * * * *", misfire=misfire)
    await world.come(made, later=5 * HOUR + 600)
    due = (await world.schedules.get(made.schedule_id)).next_at
    await world.timer.fire_due()
    after = await world.schedules.get(made.schedule_id)
    assert due is not None
    assert after.next_at is not None
    # On PostgreSQL the schedule was made older, so that its first time is no longer on the hour.
    missed = round(after.next_at / HOUR) - int(due // HOUR)
    assert missed in ((6,) if world.storage.engine == "sqlite" else (6, 7))
    fired, skipped = {"once": (1, 0), "skip": (0, 1), "all": (missed, 0)}[misfire]
    assert (after.fired, after.skipped) == (fired, skipped)
    assert 0 < after.next_at - await world.now() <= HOUR
    times = [each.due_at for each in await world.history(made)]
    assert len(set(times)) == len(times) == max(fired, skipped)
    # A little late is not missed.
    assert (await world.fire(made)).fired == fired + 1


@pytest.mark.parametrize(
    ("changes", "event"),
    [
        ({}, "started"),
        ({"misfire": "skip", "late": LATE}, "started"),
        ({"misfire": "skip", "late": LATE + 1}, "misfire"),
        ({"misfire": "once", "late": LATE + 1}, "started"),
        ({"running": 1}, "started"),
        ({"running": 1, "overlap": "skip"}, "overlap"),
        # Of several reasons the first counts: paused, missed, its condition, what still runs.
        ({"running": 1, "overlap": "skip", "unmet": True}, "condition"),
        ({"misfire": "skip", "late": LATE + 1, "unmet": True}, "misfire"),
        ({"misfire": "skip", "late": LATE + 1, "enabled": False}, "paused"),
    ],
)
def test_why_a_time_starts_nothing(changes: dict[str, Any], event: str) -> None:
    given: dict[str, Any] = {"enabled": True, "overlap": "concurrent", "misfire": "once"}
    assert skip_event(**(given | {"late": 0, "unmet": False, "running": 0} | changes)) == event


async def test_no_more_than_a_week_is_made_up_for(world: ScheduleWorld) -> None:
    made = await world.cron("0 0 * * *", misfire="all")
    await world.come(made, later=60 * 86_400)
    await world.timer.fire_due()
    assert (await world.schedules.get(made.schedule_id)).fired == 8


# --- jitter -----------------------------------------------------------------------------------------------


def test_jitter_is_spread_and_the_same_for_the_same_time() -> None:
    found = [compute_jitter("s", number, 1000) for number in range(2000)]
    assert found == [compute_jitter("s", number, 1000) for number in range(2000)]
    assert 0 <= min(found) < 10
    assert 990 < max(found) < 1000
    assert 450 < sum(found) / len(found) < 550
    assert compute_jitter("s", 1, 0) == 0


async def test_jitter_is_kept_in_the_row_and_the_cron_instant_is_shown(world: ScheduleWorld) -> None:
    made = await world.cron(jitter=600.0)
    plain = await world.cron()
    assert made.next_at is not None
    assert made.next_at == plain.next_at
    (row,) = [each for each in await world.rows(ROWS) if each[0] == made.schedule_id]
    jitter = (row[1] - row[2]) / 1e6
    assert 0 < jitter < 600
    await world.advance(made.next_at - await world.now() + jitter - 1)
    await world.timer.fire_due()
    assert (await world.schedules.get(made.schedule_id)).fired == 0
    await world.advance(2)
    await world.timer.fire_due()
    (firing,) = await world.history(made)
    assert firing.fired_at - firing.due_at == pytest.approx(jitter, abs=3)
    assert (firing.due_at % 60) == pytest.approx(0, abs=0.001) or world.storage.engine == "postgres"


# --- by hand ----------------------------------------------------------------------------------------------


async def test_a_trigger_fires_now_and_leaves_the_next_time(world: ScheduleWorld) -> None:
    made = await world.cron(name="report", overlap="skip")
    mine = world.schedules.acting_as(Caller.trusted("ada", world.namespace))
    firing = await mine.trigger("report")
    assert (firing.source, firing.actor, firing.status) == ("manual", "ada", "running")
    assert firing.started_id == (await world.runs())[0].run_id
    after = await world.schedules.get("report")
    assert (after.fired, after.next_at) == (1, made.next_at)
    skipped = await mine.trigger(made.schedule_id)
    assert (skipped.status, skipped.skipped) == ("skipped", "overlap")
    await finish(world)
    # A paused schedule can be triggered too, and the same key triggers once.
    await world.schedules.pause("report")
    first = await mine.trigger("report", idempotency_key="k")
    assert first == await mine.trigger("report", idempotency_key="k")
    assert (await world.schedules.get("report")).fired == 2
    with pytest.raises(JobNotFound, match=r"^Job not found: nothing$"):
        await mine.trigger("nothing")


async def test_triggers_at_the_same_moment_are_firings_of_their_own(world: ScheduleWorld) -> None:
    """Those of one caller are one transaction, with one time."""
    made = await world.cron()
    firings = await asyncio.gather(*(world.schedules.trigger(made.schedule_id) for _ in range(4)))
    assert len({firing.due_at for firing in firings}) == 4
    started = {firing.started_id for firing in await world.history(made)}
    assert started == {run.run_id for run in await world.runs()}
    assert len(started) == 4


async def test_a_trigger_that_cannot_start_is_recorded(world: ScheduleWorld) -> None:
    thread_id = await world.thread()
    made = await world.cron(thread_id=thread_id)
    await world.threads.delete_thread(thread_id)
    firing = await world.schedules.trigger(made.schedule_id)
    assert (firing.status, firing.error) == ("failed", f"Thread {thread_id} not found")


# --- conditions -------------------------------------------------------------------------------------------


async def test_a_condition_keeps_a_schedule_from_firing(
    world: ScheduleWorld, caplog: pytest.LogCaptureFixture
) -> None:
    holds = True

    async def away(order: Any) -> bool:
        return holds

    def broken(order: Any) -> bool:
        raise ZeroDivisionError

    world.conditions.register("away", away)
    world.conditions.register("broken", broken)
    made = [await world.cron(unless=name) for name in ("away", "broken", "unknown")]
    await world.fire(made[0])
    assert [(await world.schedules.get(each.schedule_id)).fired for each in made] == [0, 1, 1]
    assert (await world.history(made[0]))[0].skipped == "condition"
    holds = False
    await world.fire(made[0])
    assert [(await world.schedules.get(each.schedule_id)).fired for each in made] == [1, 2, 2]
    assert sum("unknown condition 'unknown'" in record.message for record in caplog.records) == 1


# --- targets ----------------------------------------------------------------------------------------------


async def test_a_rollout_is_scheduled(world: ScheduleWorld) -> None:
    made = await world.schedules.create(
        YEARLY, target="rollout", name="train", payload={"input": {"task": 1}}, timeout=50.0, overlap="skip"
    )
    await world.fire(made)
    tasks = Rollouts(world.storage, KINDS, namespace=world.namespace)
    (rollout,) = (await tasks.search()).items
    assert rollout.input == {"task": 1}
    assert rollout.config.timeout_seconds == 50.0
    assert (await world.job("train")).is_running
    await tasks.update(rollout.rollout_id, status="succeeded")
    assert (await world.job("train")).last_result == "success"
    for payload in ({}, {"input": 1, "not_before": 5.0}, {"input": 1, "mode": "wrong"}, {"x": 1}):
        with pytest.raises(InvalidInput):
            await world.schedules.create(YEARLY, target="rollout", payload=payload)
    with pytest.raises(InvalidInput, match="target must be"):
        await world.schedules.create(YEARLY, target="job", payload={"job": "x"})  # type: ignore[arg-type]


async def test_a_run_takes_the_timeout_of_its_schedule(world: ScheduleWorld) -> None:
    made = await world.cron(timeout=7.0)
    await world.fire(made)
    assert (await world.take()).timeout_seconds == 7.0


# --- names and bad input ----------------------------------------------------------------------------------


async def test_names_are_unique_and_found(world: ScheduleWorld) -> None:
    made = await world.cron(name="a.b:c_d-1")
    assert await world.schedules.get("a.b:c_d-1") == made
    assert [each.name for each in await world.schedules.search(name="a.b:c_d-1")] == ["a.b:c_d-1"]
    with pytest.raises(Conflict, match="already"):
        await world.cron(name="a.b:c_d-1")
    results = await asyncio.gather(*(world.cron(name="one") for _ in range(6)), return_exceptions=True)
    assert sum(isinstance(each, Schedule) for each in results) == 1
    for bad in ("", "a b", "-a", "a/b", "é", "a" * 129, 5):
        with pytest.raises(InvalidInput):
            await world.cron(name=bad)
    await world.schedules.delete("a.b:c_d-1")
    with pytest.raises(JobNotFound):
        await world.schedules.get("a.b:c_d-1")


async def test_the_errors_have_their_messages(world: ScheduleWorld) -> None:
    for bad in ("invalid", "", "* * *", "0 0 31 2 *"):
        with pytest.raises(InvalidCron, match=r"^Invalid cron expression: "):
            await world.cron(bad)
    for good in ("0 0 * * * *", "0 30 4 * * *", "*/10 * * * * *", "0 0 0 * * SUN", "@daily"):
        await world.cron(good)
    with pytest.raises(InvalidTimezone, match=r"^Invalid timezone: "):
        await world.cron(timezone="Mars/Olympus")
    for ask in (world.schedules.pause("x"), world.schedules.resume("x"), world.schedules.delete("x")):
        with pytest.raises(JobNotFound, match=r"^Job not found: x$"):
            await ask
    for bad_option in ({"jitter": -1}, {"jitter": 1e9}, {"overlap": "x"}, {"misfire": "x"}, {"timeout": -1}):
        with pytest.raises(InvalidInput):
            await world.cron(**bad_option)


async def test_status_has_pages(world: ScheduleWorld) -> None:
    for number in range(5):
        await world.cron(name=f"n{number}")
    await world.cron()
    first = await world.schedules.status(limit=3)
    assert ([each.job_name for each in first.jobs], first.next_after) == (["n0", "n1", "n2"], "n2")
    rest = await world.schedules.status(after="n2", limit=3)
    assert ([each.job_name for each in rest.jobs], rest.next_after) == (["n3", "n4"], None)
    assert (first.state, first.scheduler_running) == ("idle", False)
    await world.timer.start()
    assert (await world.schedules.status()).scheduler_running
    assert all(each.next_run is not None for each in first.jobs)
