"""Attempts: only the holder of a run may write; how attempts end, and what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.threads.support import AGENT_NAMES, ATTEMPTS, STEPS, World, told

from perdure.checkpoints.records import GraphState, GraphSteps
from perdure.kernel.errors import Conflict, Fenced
from perdure.threads.records import Failure, NewCheckpoint
from perdure.threads.work import Ending, Lease

LATE = GraphSteps(states=[GraphState(checkpoint_id="late", body='"late"')])
BROKEN = Failure(error="ValueError", message="bad")

Write = Callable[[World, Lease], Awaitable[object]]
WRITES: dict[str, Write] = {
    "append": lambda world, held: world.queue.append(held, told("custom")),
    "save": lambda world, held: world.queue.save(held, NewCheckpoint(values="late"), told("values")),
    "record": lambda world, held: world.queue.record(held, LATE, told("custom")),
    "keep": lambda world, held: world.queue.keep(held, held.run_id, "late", "1"),
    "success": lambda world, held: world.finish(held, "success", "late", events=told("custom")),
    "error": lambda world, held: world.finish(held, "error", "late", error=BROKEN),
    "retriable": lambda world, held: world.finish(held, "retriable", "late"),
    "timeout": lambda world, held: world.finish(held, "timeout", "late"),
}


async def stale(world: World) -> tuple[Lease, Lease]:
    """Two claims on a run: of a worker that lost it, and of the current one."""
    run = await world.run(await world.thread())
    old = (await world.take(run)).held
    await world.advance(100)
    return old, (await world.take(run, "w2")).held


@pytest.mark.parametrize("write", WRITES)
async def test_one_that_lost_its_run_writes_nothing(world: World, write: str) -> None:
    old, new = await stale(world)
    with pytest.raises(Fenced, match=old.attempt_id):
        await WRITES[write](world, old)
    assert await world.kept(new.thread_id) == []
    assert await world.rows(STEPS) == []
    assert (await world.finish(new, values="new")).status == "success"
    assert await world.names(new.run_id) == ["end"]
    assert await world.kept(new.thread_id) == ["new"]


@pytest.mark.parametrize("write", WRITES)
async def test_one_whose_run_is_over_changes_nothing(world: World, write: str) -> None:
    old, new = await stale(world)
    await world.finish(new, values="new")
    with pytest.raises(Fenced):
        await WRITES[write](world, old)
    assert await world.kept(new.thread_id) == ["new"]
    assert (await world.threads.get_run(new.run_id)).status == "success"


@pytest.mark.parametrize("write", WRITES)
async def test_one_that_gave_its_run_back_writes_nothing(world: World, write: str) -> None:
    run = await world.run(await world.thread())
    old = (await world.take(run)).held
    await world.queue.hand_back([old])
    with pytest.raises(Fenced):
        await WRITES[write](world, old)
    assert await world.status(run) == "pending"
    await world.done(run, values="new")
    assert await world.kept(run.thread_id) == ["new"]


@pytest.mark.parametrize("write", ["append", "save", "keep"])
@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_after_a_cancel_nothing_is_written(world: World, write: str, action: str) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    await world.threads.cancel_run(run.run_id, action=action)  # type: ignore[arg-type]
    with pytest.raises(Fenced):
        await WRITES[write](world, held)
    assert await world.names(run.run_id) == ["control", "end"]
    assert await world.kept(run.thread_id) == []


@pytest.mark.parametrize("write", ["success", "error", "retriable", "timeout"])
@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_after_a_cancel_every_end_is_a_stop(world: World, write: str, action: str) -> None:
    thread = await world.thread(values="before")
    run = await world.run(thread)
    held = (await world.take(run)).held
    await world.threads.cancel_run(run.run_id, action=action)  # type: ignore[arg-type]
    ended = "interrupted" if action == "interrupt" else "rollback"
    next_run = await world.run(thread, "enqueue")
    assert (await WRITES[write](world, held)).status == ended  # type: ignore[attr-defined]
    assert await world.kept(thread) == ["before"]
    assert await world.names(run.run_id) == ["control", "end"]
    await world.done(next_run)


@pytest.mark.parametrize("write", WRITES)
async def test_a_claim_on_the_wrong_thread_is_none(world: World, write: str) -> None:
    other = await world.thread(values="theirs")
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    with pytest.raises(Fenced):
        await WRITES[write](world, Lease(held.run_id, other, held.attempt_id))
    assert await world.kept(other) == ["theirs"]
    assert await world.status(run) == "running"


@pytest.mark.parametrize("write", WRITES)
async def test_an_unknown_claim_is_none(world: World, write: str) -> None:
    with pytest.raises(Fenced):
        await WRITES[write](world, Lease("no-run", "no-thread", "no-attempt"))


# --- how an attempt ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "status", "rest"),
    [("success", "success", "idle"), ("error", "error", "error"), ("timeout", "timeout", "error")],
)
async def test_a_run_ends_as_its_attempt_does(world: World, result: str, status: str, rest: str) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    error = None if result == "success" else BROKEN
    ended = await world.finish((await world.take(run)).held, result, "last", error=error)  # type: ignore[arg-type]
    assert (ended.status, ended.error, ended.attempt) == (status, error, 1)
    assert ended.ended_at is not None
    found = await world.threads.get_thread(thread)
    assert (found.status, found.values, found.error) == (rest, "last", error)
    expected = ["end"] if error is None else ["error", "end"]
    assert await world.names(run.run_id) == expected


async def test_a_good_run_clears_the_error(world: World) -> None:
    thread = await world.thread()
    await world.finish((await world.take(await world.run(thread))).held, "error", error=BROKEN)
    await world.done(await world.run(thread))
    found = await world.threads.get_thread(thread)
    assert (found.status, found.error) == ("idle", None)


async def test_a_state_with_something_next_is_an_interrupted_thread(world: World) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    held = (await world.take(run)).held
    await world.save(held, "asking", next=["answer"])
    assert (await world.finish(held)).status == "success"
    assert await world.rest(thread) == "interrupted"


@pytest.mark.parametrize("result", ["success", "error", "timeout", "retriable"])
async def test_finishing_twice_does_it_once(world: World, result: str) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    held = (await world.take(run)).held
    both = await asyncio.gather(
        *(world.finish(held, result, "last", events=told("custom")) for _ in range(2))  # type: ignore[arg-type]
    )
    again = await world.finish(held, result, "last", events=told("custom"))  # type: ignore[arg-type]
    assert len({each.status for each in (*both, again)}) == 1
    assert await world.kept(thread) == ["last"]
    await world.threads.cancel_runs(thread_id=thread)
    assert (await world.names(run.run_id)).count("custom") == 1


async def test_the_first_word_on_an_attempt_stands(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    await world.finish(held, "success")
    assert (await world.finish(held, "error", error=BROKEN)).status == "success"
    await world.queue.hand_back([held])
    assert await world.status(run) == "success"


async def test_a_stop_without_a_cancel_gives_the_run_back(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    assert (await world.finish(held, "stopped")).status == "pending"
    assert (await world.finish(held, "stopped")).status == "pending"
    assert await world.rows(ATTEMPTS, run_id=run.run_id) == [(1, "failed", "released", 0)]


# --- trying again -----------------------------------------------------------------------------------------


async def test_a_run_is_tried_so_often_and_then_fails(world: World) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    for number in range(1, 4):
        assignment = await world.take(run)
        assert (assignment.attempt, assignment.last_attempt) == (number, number == 3)
        assert await world.rest(thread) == "busy"
        ended = await world.finish(assignment.held, "retriable", error=BROKEN)
    assert (ended.status, ended.attempt) == ("error", 3)
    assert ended.error is not None
    assert ended.error.error == "ExceededMaxAttempts"
    for part in (run.run_id, "(3)", "ValueError: bad", "BG_JOB_ISOLATED_LOOPS", "async I/O"):
        assert part in ended.error.message
    assert await world.rest(thread) == "error"
    await world.idle()
    assert await world.names(run.run_id) == ["error", "end"]


async def test_a_run_may_say_itself_how_often(world: World) -> None:
    run = await world.run(await world.thread(), max_attempts=1)
    assignment = await world.take(run)
    assert assignment.last_attempt
    assert (await world.finish(assignment.held, "retriable")).status == "error"


async def test_the_next_attempt_goes_on_from_the_last_state(world: World) -> None:
    thread = await world.thread(values="before")
    run = await world.run(thread)
    first = await world.take(run)
    await world.save(first.held, "half")
    await world.queue.keep(first.held, first.origin, "fetch", '"got"')
    await world.queue.append(first.held, told("metadata", "custom"))
    await world.finish(first.held, "retriable")
    second = await world.take(run)
    assert second.checkpoint is not None
    assert (second.checkpoint.values, second.checkpoint.run_id) == ("half", run.run_id)
    assert second.steps == {"fetch": '"got"'}
    assert second.last_seq == 2


async def test_an_attempt_that_kept_nothing_leaves_the_next_where_it_was_asked_to_begin(world: World) -> None:
    thread = await world.thread(values="first")
    asked = (await world.threads.get_thread(thread)).checkpoint_id
    await world.threads.update_state(thread, "second")
    run = await world.run(thread, checkpoint_id=asked)
    for _ in range(2):
        assignment = await world.take(run)
        assert assignment.checkpoint is not None
        assert assignment.checkpoint.values == "first"
        await world.queue.hand_back([assignment.held])
    held = (await world.take(run)).held
    await world.save(held, "own")
    await world.queue.hand_back([held])
    again = (await world.take(run)).checkpoint
    assert again is not None
    assert again.values == "own"


async def test_giving_back_costs_no_attempt(world: World) -> None:
    run = await world.run(await world.thread(), max_attempts=2)
    for number in range(1, 6):
        assignment = await world.take(run, f"w{number}")
        assert (assignment.attempt, assignment.last_attempt) == (number, False)
        await world.queue.hand_back([assignment.held])
    first = await world.take(run)
    assert (await world.finish(first.held, "retriable")).status == "pending"
    last = await world.take(run)
    assert last.last_attempt
    assert (await world.finish(last.held, "retriable")).status == "error"
    charged = [row[3] for row in await world.rows(ATTEMPTS, run_id=run.run_id)]
    assert charged == [0, 0, 0, 0, 0, 1, 1]


async def test_giving_back_is_heard_by_those_who_wait(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    waiting = asyncio.create_task(world.queue.claim("w2", AGENT_NAMES, 1, 20))
    await asyncio.sleep(0)
    await world.queue.hand_back([held])
    (found,) = await waiting
    assert found.run.run_id == run.run_id


# --- states and steps -------------------------------------------------------------------------------------


async def test_a_step_that_is_kept_stays(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    await asyncio.gather(*(world.queue.keep(held, run.run_id, "a", str(n)) for n in range(3)))
    await world.queue.keep(held, run.run_id, "a", "9")
    assert await world.rows(STEPS) == [(run.run_id, "a", "0")]


async def test_an_answer_goes_on_with_the_steps_of_the_run_that_asked(world: World) -> None:
    thread = await world.thread()
    asking = await world.take(await world.run(thread))
    await world.queue.keep(asking.held, asking.origin, "paid", "true")
    state = {"origin": asking.run.run_id}
    await world.save(asking.held, "asked", next=["answer"], metadata=state)
    await world.finish(asking.held)
    other = await world.take(await world.run(thread))
    assert (other.origin, other.steps) == (other.run.run_id, {})
    await world.threads.cancel_run(other.run.run_id, action="rollback")
    await world.finish(other.held, "stopped")
    answered = await world.run(thread, command={"resume": "yes"})
    assignment = await world.take(answered)
    assert (assignment.origin, assignment.steps) == (asking.run.run_id, {"paid": "true"})


async def test_a_checkpoint_id_is_used_once(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    await world.save(held, 1, checkpoint_id="one")
    with pytest.raises(Conflict, match="one exists already"):
        await world.save(held, 2, checkpoint_id="one")
    last = Ending(held=held, result="success", checkpoint=NewCheckpoint(values=3, checkpoint_id="one"))
    with pytest.raises(Conflict, match="one exists already"):
        await world.queue.finish(last)
    assert await world.kept(run.thread_id) == [1]
    assert await world.status(run) == "running"


async def test_a_save_that_is_repeated_is_answered_as_before(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    state = NewCheckpoint(values=1, checkpoint_id="one")
    first = await world.queue.save(held, state, told("values"), after=0)
    assert await world.queue.save(held, state, told("values"), after=0) == first
    await world.finish(held)
    assert await world.names(run.run_id) == ["values", "end"]
    assert await world.kept(run.thread_id) == [1]
