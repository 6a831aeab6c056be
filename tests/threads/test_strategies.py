"""Effects of a new run on runs that are already in its thread."""

from __future__ import annotations

import asyncio

import pytest
from tests.threads.support import STATES, World

from perdure.kernel.errors import Conflict, Fenced
from perdure.threads.records import Run, RunRequest
from perdure.threads.work import Lease

STAGES = ("pending", "delayed", "running", "back-off")


async def in_stage(world: World, thread: str, stage: str) -> tuple[Run, Lease | None]:
    """Create a live run of the thread; return it with its claim if it is being executed."""
    run = await world.run(thread, after_seconds=100 if stage == "delayed" else None)
    if stage in ("pending", "delayed"):
        return run, None
    held = (await world.take(run)).held
    await world.save(held, "begun")
    if stage == "back-off":
        await world.finish(held, "retriable", retry_after=100.0)
        return run, None
    return run, held


# --- reject -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
async def test_reject_refuses_while_a_run_is_live(world: World, stage: str) -> None:
    thread = await world.thread()
    run, _ = await in_stage(world, thread, stage)
    with pytest.raises(Conflict, match=f"busy with run {run.run_id}"):
        await world.run(thread)
    assert len(await world.statuses(thread)) == 1


async def test_of_many_at_once_exactly_one_wins(world: World) -> None:
    thread = await world.thread()
    answers = await asyncio.gather(*(world.run(thread) for _ in range(8)), return_exceptions=True)
    won = [answer for answer in answers if isinstance(answer, Run)]
    assert len(won) == 1
    assert all(isinstance(answer, Conflict) for answer in answers if not isinstance(answer, Run))
    await world.done(won[0])
    await world.done(await world.run(thread))


async def test_of_many_services_at_once_exactly_one_wins(world: World) -> None:
    """The services share no merging: on PostgreSQL these are eight transactions."""
    thread = await world.thread()
    request = RunRequest(assistant_id="echo", thread_id=thread)
    services = world.others(8)
    calls = [service.create_run(request) for service in services]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(answer, Run) for answer in answers) == 1
    assert sum(isinstance(answer, Conflict) for answer in answers) == 7


async def test_reject_does_not_mind_one_that_only_has_to_stop(world: World) -> None:
    thread = await world.thread()
    first, held = await in_stage(world, thread, "running")
    await world.threads.cancel_run(first.run_id)
    second = await world.run(thread)
    await world.idle()
    assert held is not None
    await world.finish(held, "stopped")
    await world.done(second)


# --- enqueue ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
async def test_enqueue_leaves_the_others_alone(world: World, stage: str) -> None:
    thread = await world.thread()
    first, _ = await in_stage(world, thread, stage)
    was = await world.status(first)
    second = await world.run(thread, "enqueue")
    assert [await world.status(first), await world.status(second)] == [was, "pending"]


# --- interrupt and rollback -------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
async def test_interrupt_ends_what_is_live_and_keeps_its_states(world: World, stage: str) -> None:
    thread = await world.thread(values="before")
    first, held = await in_stage(world, thread, stage)
    second = await world.run(thread, "interrupt")
    assert await world.status(first) == "interrupted"
    assert await world.rest(thread) == "busy"
    if held is not None:
        await world.idle()
        await world.finish(held, "stopped")
    assignment = await world.take(second)
    expected = "begun" if stage in ("running", "back-off") else "before"
    assert assignment.checkpoint is not None
    assert assignment.checkpoint.values == expected
    await world.finish(assignment.held, values="after")
    assert await world.values(thread) == "after"


@pytest.mark.parametrize("stage", STAGES)
async def test_rollback_ends_what_is_live_and_takes_its_states_back(world: World, stage: str) -> None:
    thread = await world.thread(values="before")
    first, held = await in_stage(world, thread, stage)
    second = await world.run(thread, "rollback")
    assert await world.status(first) == "rollback"
    assert await world.values(thread) == "before"
    if held is not None:
        await world.idle()
        await world.finish(held, "stopped")
    assert await world.kept(thread) == ["before"]
    assignment = await world.take(second)
    assert assignment.checkpoint is not None
    assert assignment.checkpoint.values == "before"
    await world.finish(assignment.held, values="after")
    assert await world.kept(thread) == ["before", "after"]


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
async def test_all_that_is_live_gives_way(world: World, strategy: str) -> None:
    thread = await world.thread()
    running = await world.run(thread)
    held = (await world.take(running)).held
    waiting = [await world.run(thread, "enqueue") for _ in range(2)]
    delayed = await world.run(thread, "enqueue", after_seconds=50)
    last = await world.run(thread, strategy)
    ended = "interrupted" if strategy == "interrupt" else "rollback"
    assert [await world.status(run) for run in (running, *waiting, delayed)] == [ended] * 4
    await world.finish(held, "stopped")
    await world.done(last)
    await world.advance(100)
    await world.idle()


async def test_what_only_has_to_stop_is_left_as_it_ended(world: World) -> None:
    thread = await world.thread()
    first, held = await in_stage(world, thread, "running")
    second = await world.run(thread, "interrupt")
    third = await world.run(thread, "rollback")
    assert await world.statuses(thread) == ["interrupted", "rollback", "pending"]
    assert await world.status(second) == "rollback"
    await world.idle()
    assert held is not None
    await world.finish(held, "stopped")
    assert await world.kept(thread) == ["begun"]
    await world.done(third)
    assert await world.status(first) == "interrupted"


async def test_rollback_takes_back_the_states_of_earlier_attempts_too(world: World) -> None:
    thread = await world.thread(values="before")
    run = await world.run(thread)
    for number in range(2):
        held = (await world.take(run)).held
        await world.save(held, number)
        await world.finish(held, "retriable")
    held = (await world.take(run)).held
    await world.save(held, 2)
    await world.run(thread, "rollback")
    await world.finish(held, "stopped")
    assert await world.kept(thread) == ["before"]


async def test_rollback_takes_back_the_states_of_that_run_alone(world: World) -> None:
    thread = await world.thread()
    other = await world.thread()
    await world.done(await world.run(thread), values="kept")
    await world.done(await world.run(other), values="elsewhere")
    run = await world.run(thread)
    held = (await world.take(run)).held
    await world.save(held, "undone")
    await world.threads.cancel_run(run.run_id, action="rollback")
    assert await world.values(thread) == "kept"
    await world.finish(held, "stopped")
    assert await world.kept(thread) == ["kept"]
    assert await world.kept(other) == ["elsewhere"]


async def test_one_rollback_after_the_other(world: World) -> None:
    """The second rollback skips the states of the first, which still exist while it stops."""
    thread = await world.thread(values="before")
    _, held = await in_stage(world, thread, "running")
    assert held is not None
    await world.run(thread, "rollback")
    await world.run(thread, "rollback")
    assert await world.values(thread) == "before"
    copy = await world.threads.copy_thread(thread)
    assert await world.kept(copy.thread_id) == ["before"]
    await world.advance(50)
    assert await world.kept(thread) == ["before"]
    assert await world.rows(STATES) == [(each, None, 0) for each in sorted((thread, copy.thread_id))]
    with pytest.raises(Fenced):
        await world.finish(held, "stopped")


async def test_a_thread_rests_as_before_when_a_run_is_rolled_back(world: World) -> None:
    thread = await world.thread()
    failed = await world.run(thread)
    await world.finish((await world.take(failed)).held, "error")
    run, _ = await in_stage(world, thread, "running")
    await world.threads.cancel_run(run.run_id, action="rollback")
    assert await world.rest(thread) == "error"


async def test_a_running_run_counts_though_one_that_never_began_ends_with_it(world: World) -> None:
    thread = await world.thread()
    await in_stage(world, thread, "running")
    await world.run(thread, "enqueue")
    last = await world.run(thread, "interrupt")
    await world.threads.cancel_run(last.run_id)
    assert await world.rest(thread) == "interrupted"


async def test_each_of_a_batch_sees_what_those_before_it_did(world: World) -> None:
    thread = await world.thread()
    requests = [
        RunRequest(assistant_id="echo", thread_id=thread, multitask_strategy=strategy)
        for strategy in ("reject", "enqueue", "interrupt", "rollback")
    ]
    await world.threads.create_runs(requests)
    assert await world.statuses(thread) == ["interrupted", "interrupted", "rollback", "pending"]
