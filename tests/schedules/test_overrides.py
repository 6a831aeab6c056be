"""Schedules that code and files define: taken over into their rows, and overridden by callers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.kernel.support import until_true
from tests.schedules.support import TARGETS, YEARLY, ScheduleWorld
from tests.support.kinds import KINDS

from perdure.jobs.executor import JobExecutor
from perdure.jobs.model import JobContext, JobRegistry
from perdure.kernel.errors import Conflict, InvalidCron, InvalidInput, JobNotFound
from perdure.schedules.model import CODE, FILE, NewSchedule
from perdure.schedules.timer import ScheduleTimer
from perdure.service.callers import Caller


def defined(world: ScheduleWorld, name: str, expression: str = YEARLY, **fields: Any) -> NewSchedule:
    """A definition of a job, as a file or a program has it."""
    given: dict[str, Any] = {"payload": {"job": "note"}, "origin": FILE, "file": f"{name}.yaml"}
    return world.schedules.definition("job", expression, name=name, **(given | fields))


async def test_definitions_are_taken_over_changed_and_removed(world: ScheduleWorld) -> None:
    both = [defined(world, "a"), defined(world, "b")]
    assert (await world.schedules.sync(FILE, both)).added == ["a", "b"]
    first = await world.schedules.get("a")
    assert (first.origin, first.file, first.target, first.overridden) == ("file", "a.yaml", "job", False)
    assert await world.schedules.sync(FILE, both) == ([], [], [], {})
    changed = await world.schedules.sync(FILE, [defined(world, "a", "@hourly")], keeping=())
    assert (changed.changed, changed.removed) == (["a"], ["b"])
    again = await world.schedules.get("a")
    assert (again.schedule_id, again.expression) == (first.schedule_id, "@hourly")
    assert again.next_at != first.next_at
    with pytest.raises(JobNotFound):
        await world.schedules.get("b")
    # Those of another origin, and those that were made by calls, stay.
    await world.cron(name="mine")
    taken = await world.schedules.sync(CODE, [defined(world, "mine", origin=CODE, file=None)])
    assert list(taken.refused) == ["mine"]
    await world.schedules.sync(FILE, [], keeping=["a.yaml"])
    assert (await world.schedules.search()).total == 2
    await world.schedules.sync(FILE, [], keeping=())
    assert [each.name for each in await world.schedules.search()] == ["mine"]
    await world.schedules.sync(CODE, [defined(world, "tidy", origin=CODE, file=None)])
    for origin, names in (("code", ["tidy"]), (["api", "file"], ["mine"]), (None, ["tidy", "mine"])):
        assert [each.name for each in await world.schedules.search(origin=origin)] == names  # type: ignore[arg-type]


async def test_a_definition_that_changes_is_found_by_its_new_metadata(world: ScheduleWorld) -> None:
    for team in ("blue", "red"):
        await world.schedules.sync(FILE, [defined(world, "a", metadata={"team": team})])
    assert [each.name for each in await world.schedules.search(metadata={"team": "red"})] == ["a"]
    assert not [each.name for each in await world.schedules.search(metadata={"team": "blue"})]


async def test_several_processes_take_over_the_same_definitions(world: ScheduleWorld) -> None:
    definitions = [defined(world, name) for name in ("a", "b", "c")]
    others = [world.schedules.in_namespace(world.namespace) for _ in range(4)]
    await asyncio.gather(*(each.sync(FILE, definitions) for each in others))
    assert (await world.schedules.search()).total == 3


async def test_pause_and_edits_are_overrides_that_outlive_a_reload(world: ScheduleWorld) -> None:
    await world.schedules.sync(FILE, [defined(world, "nightly")])
    mine = world.schedules.acting_as(Caller.trusted("ada", world.namespace))
    assert await mine.get_override("nightly") is None
    paused = await mine.pause("nightly")
    assert (paused.enabled, paused.overridden, paused.expression) == (False, True, YEARLY)
    override = await mine.get_override("nightly")
    assert override is not None
    assert (override.enabled, override.schedule, override.updated_by) == (False, None, "ada")
    edited = await mine.update("nightly", expression="@hourly")
    assert (edited.enabled, edited.expression) == (False, "@hourly")
    await mine.resume("nightly")
    await world.schedules.sync(FILE, [defined(world, "nightly", "@daily")])
    shown = await mine.get("nightly")
    assert (shown.enabled, shown.expression) == (True, "@hourly")
    assert [each.name for each in await mine.search(enabled=True)] == ["nightly"]
    await mine.set_override("nightly", schedule=None)
    assert (await mine.get("nightly")).expression == "@daily"
    await mine.pause("nightly")
    assert (await mine.search(enabled=True)).total == 0
    await mine.clear_override("nightly")
    shown = await mine.get("nightly")
    assert (shown.enabled, shown.expression, shown.overridden) == (True, "@daily", False)
    assert await mine.overrides() == []
    await mine.clear_override("nightly")


async def test_an_override_counts_in_the_firing(world: ScheduleWorld) -> None:
    await world.schedules.sync(FILE, [defined(world, "nightly")])
    made = await world.schedules.get("nightly")
    await world.come(made)
    before = await world.schedules.get("nightly")
    await world.schedules.set_override("nightly", schedule="@hourly")
    moved = await world.schedules.get("nightly")
    assert before.next_at is not None
    assert moved.next_at is not None
    assert moved.next_at > before.next_at
    fired = await world.fire(moved)
    assert fired.fired == 1
    assert fired.next_at is not None
    assert fired.next_at - await world.now() <= 3600
    await world.schedules.pause("nightly")
    await world.advance(3700)
    other = ScheduleTimer(world.storage, TARGETS)
    await other.fire_due()
    assert (await world.job("nightly")).last_error == "paused"


async def test_what_a_definition_says_is_not_changed_by_calls(world: ScheduleWorld) -> None:
    await world.schedules.sync(FILE, [defined(world, "nightly")])
    for change in (
        {"timezone": "Asia/Tokyo"},
        {"payload": {"job": "x"}},
        {"jitter": 5.0},
        {"end_time": None},
    ):
        with pytest.raises(Conflict, match=r"defined in nightly\.yaml"):
            await world.schedules.update("nightly", **change)
    with pytest.raises(Conflict, match="defined in"):
        await world.schedules.delete("nightly")
    with pytest.raises(InvalidCron):
        await world.schedules.set_override("nightly", schedule="bad")
    with pytest.raises(InvalidInput):
        await world.schedules.set_override("nightly", enabled="no")  # type: ignore[arg-type]
    assert await world.schedules.get_override("nightly") is None
    await world.cron(name="mine")
    with pytest.raises(Conflict, match="update it instead"):
        await world.schedules.set_override("mine", enabled=False)
    for ask in (world.schedules.set_override("x", enabled=True), world.schedules.clear_override("x")):
        with pytest.raises(JobNotFound):
            await ask


async def test_an_override_outlives_its_definition(world: ScheduleWorld) -> None:
    await world.schedules.sync(FILE, [defined(world, "a"), defined(world, "b")])
    await world.schedules.pause("a")
    await world.schedules.pause("b")
    await world.schedules.sync(FILE, [], keeping=())
    assert [each.name for each in await world.schedules.overrides()] == ["a", "b"]
    assert [each.name for each in await world.schedules.overrides(after="a", limit=5)] == ["b"]
    await world.schedules.clear_override("b")
    await world.schedules.sync(FILE, [defined(world, "a"), defined(world, "b")])
    assert [(await world.schedules.get(name)).enabled for name in ("a", "b")] == [False, True]


async def test_a_job_of_code_is_fired_executed_and_settled(world: ScheduleWorld) -> None:
    seen: list[Mapping[str, Any]] = []

    async def roll_up(context: JobContext, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        seen.append(payload)
        return {"nodes": 3}

    registry = JobRegistry()
    registry.register(f"rollup {world.namespace}", roll_up)
    spoofed = {"job": f"rollup {world.namespace}", "payload": {"level": "day", "schedule": "mine"}}
    definition = defined(
        world, "rollup-day", payload=spoofed, origin=CODE, file=None, overlap="skip", timeout=9
    )
    await world.schedules.sync(CODE, [definition])
    await world.fire(await world.schedules.get("rollup-day"))
    assert (await world.job("rollup-day")).is_running
    executor = JobExecutor(world.storage, registry, KINDS)
    await executor.start()

    async def has_ended() -> bool:
        return not (await world.job("rollup-day")).is_running

    try:
        await until_true(has_ended)
    finally:
        await executor.stop()
    status = await world.job("rollup-day")
    assert (status.last_result, status.last_run_metadata, status.origin) == ("success", {"nodes": 3}, "code")
    (payload,) = seen
    assert (payload["level"], payload["schedule"]["name"]) == ("day", "rollup-day")
    # A trigger is for the time at which it comes, and says who did it.
    mine = world.schedules.acting_as(Caller.trusted("ada", world.namespace))
    await mine.trigger("rollup-day")
    executor = JobExecutor(world.storage, registry, KINDS)
    await executor.start()
    try:
        await until_true(has_ended)
    finally:
        await executor.stop()
    schedule = seen[1]["schedule"]
    assert (schedule["source"], schedule["actor"]) == ("manual", "ada")
    assert schedule["due_at"] == pytest.approx(await world.now(), abs=60)
    with pytest.raises(InvalidInput, match="has a payload with 'job'"):
        defined(world, "x", payload={"level": "day"})
