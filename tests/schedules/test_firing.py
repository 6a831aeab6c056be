"""What happens when the time of a schedule comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.kernel.support import soon, until_true
from tests.schedules.support import FIRINGS, TARGETS, YEARLY, ScheduleWorld

from perdure.assistants.service import Assistants
from perdure.kernel.errors import AlreadyRunning, NotRunning, PerdureError
from perdure.kernel.storage.port import Tx
from perdure.schedules import model
from perdure.schedules.model import FiringOutcome, FiringRequest, ScheduleTargets
from perdure.schedules.operations import fire
from perdure.schedules.service import Schedules
from perdure.schedules.timer import ScheduleTimer

DAY = 86_400.0


async def test_nothing_fires_before_its_time(world: ScheduleWorld) -> None:
    made = await world.cron()
    await world.timer.fire_due()
    assert await world.schedules.get(made.schedule_id) == made
    assert await world.runs() == []


async def test_a_schedule_fires_once_and_goes_on(world: ScheduleWorld) -> None:
    made = await world.cron(payload={"input": {"n": 1}}, metadata={"team": "blue"})
    fired = await world.fire(made)
    (run,) = await world.runs()
    assert (fired.fired, fired.refused, fired.started_id, fired.error) == (1, 0, run.run_id, None)
    assert fired.fired_at is not None
    assert fired.next_at is not None
    assert fired.next_at > fired.fired_at
    await world.timer.fire_due()
    assert len(await world.runs()) == 1
    again = await world.fire(fired)
    assert again.fired == 2
    assert len(await world.runs()) == 2


async def test_the_run_gets_what_the_schedule_says(world: ScheduleWorld) -> None:
    thread_id = await world.thread()
    made = await world.cron(
        thread_id=thread_id,
        metadata={"team": "blue"},
        payload={
            "input": {"n": 1},
            "config": {"recursion_limit": 7, "configurable": {"k": 1}},
            "context": {"user": "ada"},
            "webhook": "https://hooks.example/x",
            "multitask_strategy": "interrupt",
            "stream_mode": "updates",
            "interrupt_before": ["a"],
            "stream_subgraphs": True,
            "durability": "sync",
            "checkpoint_during": None,
        },
    )
    await world.fire(made)
    (run,) = await world.runs()
    assert (run.thread_id, run.assistant_id) == (thread_id, made.assistant_id)
    assert run.metadata["team"] == "blue"
    assert run.metadata["assistant_id"] == made.assistant_id
    assert (run.multitask_strategy, run.webhook) == ("interrupt", "https://hooks.example/x")
    assert run.kwargs.input == {"n": 1}
    assert run.kwargs.config == {
        "recursion_limit": 7,
        "configurable": {"k": 1, "cron_id": made.schedule_id},
    }
    assert run.kwargs.context == {"user": "ada"}
    assert run.kwargs.stream_mode == ["updates"]
    assert run.kwargs.options == {"interrupt_before": ["a"], "stream_subgraphs": True, "durability": "sync"}


async def test_without_a_thread_each_firing_gets_one_that_ends_with_it(world: ScheduleWorld) -> None:
    made = await world.cron()
    await world.fire(made)
    await world.fire(made)
    one, other = await world.runs()
    assert one.thread_id != other.thread_id
    assert one.temporary
    assert other.temporary


async def test_a_thread_may_be_kept(world: ScheduleWorld) -> None:
    made = await world.cron(payload={"on_run_completed": "keep"}, metadata={"team": "blue"})
    await world.fire(made)
    (run,) = await world.runs()
    assert not run.temporary
    found = await world.threads.search_threads(metadata={"team": "blue"})
    assert [(each.thread_id, each.status) for each in found] == [(run.thread_id, "busy")]


async def test_firings_wait_in_the_line_of_their_thread(world: ScheduleWorld) -> None:
    thread_id = await world.thread()
    made = await world.cron(thread_id=thread_id)
    await world.fire(made)
    await world.fire(made)
    assert [run.multitask_strategy for run in await world.runs()] == ["enqueue", "enqueue"]
    assert await world.statuses(thread_id) == ["pending", "pending"]


async def test_times_that_nobody_saw_come_fire_once(world: ScheduleWorld) -> None:
    made = await world.cron("0 * * * *")
    await world.come(made, later=50 * 3600)
    await world.timer.fire_due()
    after = await world.schedules.get(made.schedule_id)
    assert (after.fired, len(await world.runs())) == (1, 1)
    assert after.next_at is not None
    assert 0 < after.next_at - await world.now() <= 3600
    (firing,) = await world.schedules.firings(made.schedule_id)
    assert firing.fired_at - firing.due_at > 49 * 3600


async def test_a_paused_schedule_does_not_fire_nor_make_up_for_it(world: ScheduleWorld) -> None:
    made = await world.cron()
    await world.schedules.pause(made.schedule_id)
    await world.advance(800 * DAY)
    await world.timer.fire_due()
    resumed = await world.schedules.resume(made.schedule_id)
    await world.timer.fire_due()
    assert (resumed.fired, await world.runs()) == (0, [])
    assert resumed.next_at is not None
    assert resumed.next_at > await world.now()


async def test_the_last_time_before_its_end_fires_and_then_it_is_over(world: ScheduleWorld) -> None:
    made = await world.cron()
    assert made.next_at is not None
    await world.schedules.update(made.schedule_id, end_time=made.next_at)
    fired = await world.fire(made)
    assert (fired.fired, fired.next_at, fired.enabled) == (1, None, True)
    await world.advance(800 * DAY)
    await world.timer.fire_due()
    assert len(await world.runs()) == 1


async def test_what_was_missed_does_not_fire_long_after_its_end(world: ScheduleWorld) -> None:
    made = await world.cron()
    assert made.next_at is not None
    await world.schedules.update(made.schedule_id, end_time=made.next_at + 10)
    await world.come(made, later=DAY)
    await world.timer.fire_due()
    after = await world.schedules.get(made.schedule_id)
    assert (after.fired, after.refused, after.next_at) == (0, 0, None)
    assert await world.runs() == []


async def test_a_refusal_is_recorded_and_the_schedule_goes_on(world: ScheduleWorld) -> None:
    thread_id = await world.thread()
    busy = await world.run(thread_id)
    made = await world.cron(thread_id=thread_id, payload={"multitask_strategy": "reject"})
    refused = await world.fire(made)
    assert (refused.fired, refused.refused, refused.started_id) == (0, 1, None)
    assert refused.error is not None
    assert "busy" in refused.error
    assert refused.next_at is not None
    await world.threads.cancel_run(busy.run_id)
    fired = await world.fire(made)
    assert (fired.fired, fired.refused, fired.error) == (1, 1, None)
    newest, oldest = await world.schedules.firings(made.schedule_id)
    assert (newest.started_id, newest.error) == (fired.started_id, None)
    assert (oldest.started_id, oldest.error) == (None, refused.error)


async def test_a_thread_and_an_assistant_that_are_gone_are_refusals(world: ScheduleWorld) -> None:
    thread_id = await world.thread()
    assistants = Assistants(world.storage, namespace=world.namespace)
    own = await assistants.create("echo")
    lost_thread = await world.cron(thread_id=thread_id)
    lost_assistant = await world.cron(assistant=own.assistant_id)
    fine = await world.cron()
    await world.threads.delete_thread(thread_id)
    await assistants.delete(own.assistant_id)
    await world.fire(fine)
    ends = [await world.schedules.get(each.schedule_id) for each in (lost_thread, lost_assistant, fine)]
    assert [(each.fired, each.refused) for each in ends] == [(0, 1), (0, 1), (1, 0)]
    assert ends[0].error == f"Thread {thread_id} not found"
    assert ends[1].error == f"Assistant {own.assistant_id} not found"


async def test_those_who_look_at_once_fire_each_time_once(world: ScheduleWorld) -> None:
    made = [await world.cron(payload={"input": number}) for number in range(5)]
    await world.come(made[0])
    await asyncio.gather(*(world.timer.fire_due() for _ in range(8)))
    assert sorted(run.kwargs.input for run in await world.runs()) == [0, 1, 2, 3, 4]
    assert len(await world.rows(FIRINGS)) == 5


async def test_each_namespace_gets_its_own(world: ScheduleWorld) -> None:
    other = ScheduleWorld(world.storage, world.clock, world.namespace + " 2")
    await other.begin()
    mine, theirs = await world.cron(), await other.cron()
    await other.come(theirs)
    await world.fire(mine) if world.storage.engine == "postgres" else await world.timer.fire_due()
    assert len(await world.runs()) == len(await other.runs()) == 1


class Moody:
    """A target that breaks, in ways that nobody foresaw."""

    name = "moody"

    def prepare(self, order: FiringRequest) -> FiringRequest:
        if order.schedule_id and order.payload.get("broken") == "prepare":
            raise ZeroDivisionError("by\0zero")
        return order

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        return None

    async def start(self, tx: Tx, prepared: Sequence[FiringRequest]) -> list[str | PerdureError]:
        if any(order.payload.get("broken") for order in prepared):
            raise ZeroDivisionError("by\0zero")
        return [f"started {order.schedule_id}" for order in prepared]

    async def find(self, tx: Tx, started: Sequence[str]) -> dict[str, str]:
        return {name: name for name in started}

    def outcome(self, found: str) -> FiringOutcome | None:
        return None

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        return "moody", started_id


@pytest.mark.parametrize("broken", ["prepare", "start"])
async def test_one_that_breaks_does_not_stop_the_others(world: ScheduleWorld, broken: str) -> None:
    schedules = Schedules(world.storage, ScheduleTargets(Moody()), namespace=world.namespace)
    made = [
        await schedules.create_for("moody", YEARLY, payload={"broken": broken if number == 1 else ""})
        for number in range(3)
    ]
    await world.come(made[0])
    await ScheduleTimer(world.storage, ScheduleTargets(Moody())).fire_due()
    ends = [await schedules.get(each.schedule_id) for each in made]
    assert [(each.fired, each.refused) for each in ends] == [(1, 0), (0, 1), (1, 0)]
    assert ends[1].error == "ZeroDivisionError: by\ufffdzero"
    assert ends[1].next_at is not None
    assert ends[0].started_id == f"started {made[0].schedule_id}"


async def test_one_that_breaks_makes_up_for_no_missed_time(world: ScheduleWorld) -> None:
    schedules = Schedules(world.storage, ScheduleTargets(Moody()), namespace=world.namespace)
    made = await schedules.create_for("moody", "0 0 * * *", payload={"broken": "start"})
    await world.come(made, 3.5 * DAY)
    await ScheduleTimer(world.storage, ScheduleTargets(Moody())).fire_due()
    failed = await schedules.get(made.schedule_id)
    assert failed.refused == 1
    assert failed.next_at is not None
    assert failed.next_at > await world.now()


async def test_those_of_a_target_that_is_not_known_here_wait(world: ScheduleWorld) -> None:
    schedules = Schedules(world.storage, ScheduleTargets(Moody()), namespace=world.namespace)
    made = await schedules.create_for("moody", YEARLY)
    await world.come(made)
    await world.timer.fire_due()
    assert (await schedules.get(made.schedule_id)).fired == 0
    await ScheduleTimer(world.storage, ScheduleTargets(Moody())).fire_due()
    assert (await schedules.get(made.schedule_id)).fired == 1


async def test_of_many_firings_the_latest_are_kept(
    world: ScheduleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "KEPT_FIRINGS", 3)
    monkeypatch.setattr(fire, "TRIM_EVERY", 1)
    made = await world.cron()
    runs = [(await world.fire(made)).started_id for _ in range(5)]
    found = await world.schedules.firings(made.schedule_id, limit=100)
    assert [each.started_id for each in found] == runs[:1:-1]


async def test_a_firing_that_leaves_the_history_while_it_runs_counts_as_running_no_longer(
    world: ScheduleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number that runs is that of the open firings in the history, so that it comes back to zero."""
    monkeypatch.setattr(model, "KEPT_FIRINGS", 3)
    monkeypatch.setattr(fire, "TRIM_EVERY", 1)
    made = await world.cron()
    for _ in range(5):
        await world.fire(made)
    history = await world.history(made)
    assert [firing.status for firing in history] == ["running"] * 3
    assert (await world.schedules.get(made.schedule_id)).running == 3
    for assignment in await world.claim():
        await world.finish(assignment.held)
    assert {firing.status for firing in await world.history(made)} == {"success"}
    await world.schedules.update(made.schedule_id, overlap="skip")
    again = await world.fire(made)
    assert (again.fired, again.skipped, again.running) == (6, 0, 1)


async def test_it_fires_by_itself_and_hears_of_what_is_due_sooner(
    world: ScheduleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = ScheduleTimer(world.storage, TARGETS, poll=600.0)
    fire_due, looked = patient.fire_due, asyncio.Event()

    async def look() -> float | None:
        wait = await fire_due()
        looked.set()
        return wait

    monkeypatch.setattr(patient, "fire_due", look)
    await world.cron()
    await patient.start()
    await soon(looked.wait())
    with pytest.raises(AlreadyRunning, match=r"^Scheduler is already running$"):
        await patient.start()
    assert patient.state == "running"
    try:
        # The loop sleeps for ten minutes; a hint that something is due sooner wakes it.
        made = await world.cron("* * * * * *")
        clock: Any = world.clock

        async def has_fired() -> bool:
            if world.storage.engine == "sqlite":
                clock.advance(1.0)
                await world.schedules.update(made.schedule_id, metadata={"look": 1})
            return (await world.schedules.get(made.schedule_id)).fired > 0

        await until_true(has_fired)
    finally:
        await patient.stop()
    assert patient.state == "idle"
    with pytest.raises(NotRunning, match=r"^Scheduler is not running$"):
        await patient.stop()
    assert (await world.runs())[0].kwargs.config == {"configurable": {"cron_id": made.schedule_id}}


async def test_trouble_with_the_database_is_waited_out(
    world: ScheduleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = ScheduleTimer(world.storage, TARGETS, poll=0.01)
    fire_due, calls = timer.fire_due, asyncio.Event()

    async def troubled() -> float | None:
        if not calls.is_set():
            calls.set()
            raise ConnectionError("the database is away")
        return await fire_due()

    monkeypatch.setattr(timer, "fire_due", troubled)
    made = await world.cron()
    await world.come(made)
    await timer.start()

    async def has_fired() -> bool:
        return (await world.schedules.get(made.schedule_id)).fired == 1

    await until_true(has_fired)
    await timer.stop()
