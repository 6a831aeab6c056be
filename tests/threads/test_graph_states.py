"""Graph states in their threads: rows in `threads`, pieces in `checkpoints`, in one transaction."""

from __future__ import annotations

import msgspec
import pytest
from tests.threads.support import World, told

from perdure.checkpoints.records import CheckpointQuery, GraphChanges, GraphPut, GraphState, GraphSteps, Piece
from perdure.kernel.errors import Conflict, Fenced, InvalidInput
from perdure.threads.encoding import INLINE_BYTES
from perdure.threads.records import RunEnd
from perdure.threads.work import Ending, Lease


def packed(value: object) -> tuple[str, bytes]:
    return "msgpack", msgspec.msgpack.encode(value)


def put(held: Lease, checkpoint_id: str, value: object, parent_id: str | None = None) -> GraphPut:
    return GraphPut(
        thread_id=held.thread_id,
        checkpoint_id=checkpoint_id,
        parent_id=parent_id,
        run_id=held.run_id,
        checkpoint=packed({"id": checkpoint_id}),
        metadata={"step": 1},
        versions={"value": checkpoint_id, "branch:to:x": checkpoint_id},
        pieces=[
            Piece(channel="value", version=checkpoint_id, value=packed(value)),
            Piece(channel="branch:to:x", version=checkpoint_id, value=packed(None)),
        ],
    )


def steps(held: Lease, checkpoint_id: str, value: object, *following: str) -> GraphSteps:
    """Build a checkpoint that is a state of its thread."""
    return GraphSteps(
        changes=GraphChanges(puts=[put(held, checkpoint_id, value)]),
        states=[GraphState(checkpoint_id=checkpoint_id, next=list(following), metadata={"step": 1})],
    )


async def begun(world: World) -> Lease:
    run = await world.run(await world.thread())
    return (await world.take(run)).held


async def pieces(world: World, thread_id: str) -> list[str]:
    query = CheckpointQuery(thread_id=thread_id)
    found = await world.queue.find_graphs(Lease("", thread_id, ""), query)
    return [each.checkpoint_id for each in found]


async def end(world: World, held: Lease) -> RunEnd:
    return await world.threads.join_run(held.run_id, 10)


async def test_a_state_shows_what_its_pieces_hold(world: World) -> None:
    held = await begun(world)
    assert await world.queue.record(held, steps(held, "c1", [1, 2], "next"), told("a", "b")) == 2
    state = await world.threads.get_state(held.thread_id)
    assert state is not None
    assert (state.values, state.next, state.graph, state.state) == ({"value": [1, 2]}, ["next"], True, None)
    assert (state.run_id, state.attempt) == (held.run_id, 1)
    peeked = await world.threads.peek_state(held.thread_id)
    assert peeked is not None
    assert (peeked.values, peeked.graph) == (None, True)
    await world.finish(held)
    thread = await world.threads.get_thread(held.thread_id)
    assert (thread.status, thread.values) == ("interrupted", {"value": [1, 2]})


async def test_a_call_that_is_repeated_is_carried_out_once(world: World) -> None:
    held = await begun(world)
    for _ in range(2):
        assert await world.queue.record(held, steps(held, "c1", 1), told("a"), after=0) == 1
    for _ in range(2):
        assert await world.queue.record(held, steps(held, "c2", 2), after=1) == 1
    with pytest.raises(Conflict):
        await world.queue.record(held, steps(held, "c3", 3), told("b"), after=7)
    history = await world.threads.history(held.thread_id)
    assert [each.checkpoint_id for each in history] == ["c2", "c1"]
    assert await pieces(world, held.thread_id) == ["c2", "c1"]


async def test_a_state_is_brought_up_to_date(world: World) -> None:
    held = await begun(world)
    await world.queue.record(held, steps(held, "c1", 1, "next"))
    asked = {"id": "i", "value": "well?", "task_id": "t"}
    again = GraphState(checkpoint_id="c1", next=["asks"], interrupts=[asked], body='{"value":1}', again=True)
    ending = Ending(held=held, result="success", graph=GraphSteps(states=[again]))
    await world.queue.finish(ending)
    done = await end(world, held)
    assert (done.values, [each.value for each in done.interrupts]) == ({"value": 1}, ["well?"])
    assert [each.task_id for each in done.interrupts] == ["t"]
    thread = await world.threads.get_thread(held.thread_id)
    assert thread.status == "interrupted"
    assert len(await world.threads.history(held.thread_id)) == 1


@pytest.mark.parametrize("length", [1, INLINE_BYTES + 1])
async def test_the_end_brings_what_is_left(world: World, length: int) -> None:
    held = await begun(world)
    value = "x" * length
    left = steps(held, "c1", value)
    body = msgspec.json.encode({"value": value}).decode()
    left = msgspec.structs.replace(left, states=[msgspec.structs.replace(left.states[0], body=body)])
    await world.queue.finish(Ending(held=held, result="success", graph=left, events=told("values")))
    assert (await end(world, held)).values == {"value": value}
    state = await world.threads.get_state(held.thread_id)
    assert state is not None
    assert (state.values, state.graph) == ({"value": value}, True)
    assert await world.names(held.run_id) == ["values", "end"]


async def test_a_cancelled_run_may_say_what_it_has_done(world: World) -> None:
    held = await begun(world)
    await world.threads.cancel_run(held.run_id)
    with pytest.raises(Fenced):
        await world.queue.record(held, steps(held, "late", 1))
    await world.queue.finish(Ending(held=held, result="stopped", graph=steps(held, "c1", 1, "next")))
    thread = await world.threads.get_thread(held.thread_id)
    assert (thread.status, thread.values) == ("interrupted", {"value": 1})


async def test_a_run_that_is_undone_leaves_nothing(world: World) -> None:
    held = await begun(world)
    await world.queue.record(held, steps(held, "c1", 1))
    await world.threads.cancel_run(held.run_id, action="rollback")
    await world.queue.finish(Ending(held=held, result="stopped", graph=steps(held, "c2", 2)))
    assert await world.threads.get_state(held.thread_id) is None
    assert await pieces(world, held.thread_id) == []


async def test_no_graph_writes_into_another_thread(world: World) -> None:
    held, other = await begun(world), await begun(world)
    with pytest.raises(InvalidInput, match="contain checkpoints of thread"):
        await world.queue.record(held, steps(other, "c1", 1))
    await world.queue.record(other, steps(other, "c1", 1))
    found = await world.queue.find_graphs(held, CheckpointQuery(thread_id=other.thread_id))
    assert found == []


async def test_a_state_is_changed_from_outside(world: World) -> None:
    held = await begun(world)
    await world.queue.record(held, steps(held, "c1", 1, "next"))
    change = steps(held, "c2", 2)
    with pytest.raises(Conflict, match="busy"):
        await world.threads.update_graph(held.thread_id, change, "c1")
    await world.finish(held)
    with pytest.raises(Conflict, match="newer state"):
        await world.threads.update_graph(held.thread_id, change, None)
    await world.threads.update_graph(held.thread_id, change, "c1")
    thread = await world.threads.get_thread(held.thread_id)
    assert (thread.status, thread.values, thread.checkpoint_id) == ("idle", {"value": 2}, "c2")
