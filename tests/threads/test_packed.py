"""Checkpoints stored together: superseded ones get rows only when a reader asks for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.threads.support import World, told

from perdure.checkpoints.packs import MAX_BYTES
from perdure.checkpoints.records import (
    CheckpointQuery,
    GraphChanges,
    GraphPut,
    GraphState,
    GraphSteps,
    GraphTuple,
    GraphWrite,
    Piece,
    Version,
)
from perdure.checkpoints.service import StoredCheckpoints
from perdure.kernel.codec import encode_json
from perdure.kernel.storage.dialect import statement
from perdure.streams.model import REFERENCE_SIZE, NewEvent, Shown
from perdure.threads.operations.packed import is_packed
from perdure.threads.records import Checkpoint
from perdure.threads.work import Ending, Lease

COUNT = statement(
    """
    SELECT (SELECT count(*) FROM graph_checkpoints WHERE ns = :ns AND thread_id = :thread_id),
      (SELECT count(*) FROM checkpoints WHERE ns = :ns AND thread_id = :thread_id),
      (SELECT count(*) FROM graph_writes WHERE ns = :ns AND thread_id = :thread_id)
    """
)


def value_of(value: object) -> tuple[str, bytes]:
    return "msgpack", msgspec.msgpack.encode(value)


def step(
    held: Lease, checkpoint_id: str, parent_id: str | None, value: object, kept: str | None = None
) -> GraphSteps:
    """Build a step of a graph: its checkpoint, the write of its task before it, and the state of the thread.

    `kept` is the version of a channel that the step did not change.
    """
    first = kept is None
    versions: dict[str, Version] = {"value": checkpoint_id, "kept": checkpoint_id if first else kept}
    pieces = [Piece(channel="value", version=checkpoint_id, value=value_of(value))]
    if first:
        pieces.append(Piece(channel="kept", version=checkpoint_id, value=value_of(f"kept since {value}")))
    put = GraphPut(
        thread_id=held.thread_id,
        checkpoint_id=checkpoint_id,
        parent_id=parent_id,
        run_id=held.run_id,
        checkpoint=value_of({"id": checkpoint_id}),
        metadata={"source": "loop", "step": value, "run_id": held.run_id},
        versions=versions,
        pieces=pieces,
    )
    writes = [] if parent_id is None else [write(held, parent_id, value)]
    state = GraphState(checkpoint_id=checkpoint_id, parent_id=parent_id, next=[f"after {checkpoint_id}"])
    return GraphSteps(changes=GraphChanges(puts=[put], writes=writes), states=[state])


def write(held: Lease, checkpoint_id: str, value: object) -> GraphWrite:
    return GraphWrite(
        thread_id=held.thread_id,
        checkpoint_id=checkpoint_id,
        task_id=f"task of {checkpoint_id}",
        task_path="path",
        idx=0,
        channel="value",
        value=value_of(value),
    )


def chain(held: Lease, names: Sequence[str], parent_id: str | None = None) -> list[GraphSteps]:
    """Build consecutive steps. The first sets a channel that the others keep."""
    made = []
    for number, name in enumerate(names):
        made.append(step(held, name, parent_id, number, None if number == 0 else names[0]))
        parent_id = name
    return made


def together(steps: Sequence[GraphSteps]) -> GraphSteps:
    puts = [put for each in steps for put in each.changes.puts]
    writes = [write for each in steps for write in each.changes.writes]
    states = [state for each in steps for state in each.states]
    return GraphSteps(changes=GraphChanges(puts=puts, writes=writes), states=states)


async def begun(world: World, thread_id: str | None = None) -> Lease:
    return (await world.take(await world.run(thread_id or await world.thread()))).held


async def packed_run(
    world: World, names: Sequence[str], thread_id: str | None = None, after: str | None = None
) -> Lease:
    """Create a run that stores its checkpoints together and has ended."""
    held = await begun(world, thread_id)
    await world.queue.record(held, together(chain(held, names, after)), told("a"))
    await world.queue.finish(Ending(held=held, result="success"))
    return held


async def counts(world: World, thread_id: str) -> list[int]:
    """Count the checkpoints, states and writes of a thread that have rows."""
    (row,) = await world.rows(COUNT, thread_id=thread_id)
    return list(row)


def shown(state: Checkpoint, names: dict[str, str]) -> dict[str, Any]:
    """Return a state without times, and with placeholders for IDs of runs and threads."""
    fields = msgspec.to_builtins(state)
    for field in ("created_at", "thread_id"):
        del fields[field]
    return dict(msgspec.json.decode(_named(encode_json(fields), names)))


def _named(text: str, names: dict[str, str]) -> str:
    for name, plain in names.items():
        text = text.replace(name, plain)
    return text


async def history(world: World, thread_id: str, **names: str) -> list[dict[str, Any]]:
    plain = {value: key for key, value in names.items()}
    return [shown(state, plain) for state in await world.threads.history(thread_id)]


async def tuples(world: World, thread_id: str) -> list[GraphTuple]:
    return await world.queue.find_graphs(Lease("", thread_id, ""), CheckpointQuery(thread_id=thread_id))


async def test_what_was_stored_together_is_read_as_what_was_stored_one_by_one(world: World) -> None:
    first = await packed_run(world, ["c1", "c2", "c3"])
    again = await packed_run(world, ["d1", "d2", "d3"], first.thread_id, "c3")
    assert await counts(world, first.thread_id) == [2, 2, 1]
    single = await begun(world)
    for each in chain(single, ["c1", "c2", "c3"]):
        await world.queue.record(single, each)
    await world.queue.finish(Ending(held=single, result="success"))
    second = await begun(world, single.thread_id)
    for each in chain(second, ["d1", "d2", "d3"], "c3"):
        await world.queue.record(second, each)
    await world.queue.finish(Ending(held=second, result="success"))
    assert await counts(world, single.thread_id) == [6, 6, 5]
    ours = await history(world, first.thread_id, one=first.run_id, two=again.run_id)
    assert ours == await history(world, single.thread_id, one=single.run_id, two=second.run_id)
    assert [each["checkpoint_id"] for each in ours] == ["d3", "d2", "d1", "c3", "c2", "c1"]
    assert ours[1]["values"] == {"value": 1, "kept": "kept since 0"}
    plain = {first.run_id: "one", again.run_id: "two", single.run_id: "one", second.run_id: "two"}
    plain |= {first.thread_id: "thread", single.thread_id: "thread"}
    found = [_named(repr(await tuples(world, each)), plain) for each in (first.thread_id, single.thread_id)]
    assert found[0] == found[1]
    assert await counts(world, first.thread_id) == [6, 6, 5]
    assert not await world.threads.read(is_packed, [first.thread_id])


async def test_an_earlier_state_is_asked_for_by_its_id(world: World) -> None:
    held = await packed_run(world, ["c1", "c2", "c3"])
    state = await world.threads.get_state(held.thread_id)
    assert state is not None
    assert (state.checkpoint_id, state.parent_id, state.step) == ("c3", "c2", 2)
    assert await counts(world, held.thread_id) == [1, 1, 0]
    earlier = await world.threads.get_state(held.thread_id, "c2")
    assert earlier is not None
    assert (earlier.values, earlier.parent_id, earlier.step) == (
        {"value": 1, "kept": "kept since 0"},
        "c1",
        1,
    )
    assert earlier.metadata == {"source": "loop", "step": 1, "run_id": held.run_id}


async def test_a_run_goes_on_from_an_earlier_checkpoint(world: World) -> None:
    held = await packed_run(world, ["c1", "c2", "c3"])
    run = await world.run(held.thread_id, checkpoint_id="c1")
    taken = await world.take(run)
    assert taken.checkpoint is not None
    assert (taken.checkpoint.checkpoint_id, taken.checkpoint.next) == ("c1", ["after c1"])
    query = CheckpointQuery(checkpoint_ns="", checkpoint_id="c1", limit=1)
    (found,) = await world.queue.find_graphs(taken.held, query)
    assert [each.task_id for each in found.writes] == ["task of c1"]


async def test_a_worker_asks_for_an_earlier_checkpoint(world: World) -> None:
    held = await begun(world)
    await world.queue.record(held, together(chain(held, ["c1", "c2", "c3"])))
    newest = CheckpointQuery(checkpoint_ns="", limit=1)
    assert [each.checkpoint_id for each in await world.queue.find_graphs(held, newest)] == ["c3"]
    assert await world.threads.read(is_packed, [held.thread_id])
    query = CheckpointQuery(checkpoint_ns="", checkpoint_id="c2", limit=1)
    assert [each.checkpoint_id for each in await world.queue.find_graphs(held, query)] == ["c2"]
    assert [each.checkpoint_id for each in await tuples(world, held.thread_id)] == ["c3", "c2", "c1"]


async def test_a_copy_has_all_states(world: World) -> None:
    held = await packed_run(world, ["c1", "c2", "c3"])
    copy = await world.threads.copy_thread(held.thread_id)
    copied = await world.threads.history(copy.thread_id)
    original = await world.threads.history(held.thread_id)
    fields = [(each.checkpoint_id, each.parent_id, each.values, each.metadata) for each in original]
    assert [(each.checkpoint_id, each.parent_id, each.values, each.metadata) for each in copied] == fields


@pytest.mark.parametrize("removed", [0, 1])
async def test_removing_a_run_leaves_the_states_of_the_other(world: World, removed: int) -> None:
    first = await packed_run(world, ["c1", "c2", "c3"])
    second = await begun(world, first.thread_id)
    chained = [step(second, "d1", "c3", 7, "c1"), step(second, "d2", "d1", 8, "c1")]
    await world.queue.record(second, together(chained))
    await world.queue.finish(Ending(held=second, result="success"))
    runs = [first, second]
    await world.threads.delete_run(runs[removed].run_id)
    left = {state.checkpoint_id: state.values for state in await world.threads.history(first.thread_id)}
    kept = "kept since 0"
    if removed:
        assert left == {f"c{number + 1}": {"value": number, "kept": kept} for number in range(3)}
    else:
        assert left == {"d1": {"value": 7, "kept": kept}, "d2": {"value": 8, "kept": kept}}


async def test_a_rollback_takes_all_states_of_its_run(world: World) -> None:
    first = await packed_run(world, ["c1", "c2"])
    held = await begun(world, first.thread_id)
    await world.queue.record(held, together(chain(held, ["d1", "d2", "d3"], "c2")))
    await world.threads.cancel_run(held.run_id, action="rollback")
    await world.queue.finish(Ending(held=held, result="stopped"))
    found = await world.threads.history(first.thread_id)
    assert [state.checkpoint_id for state in found] == ["c2", "c1"]


async def test_only_the_latest_is_kept(world: World) -> None:
    held = await packed_run(world, ["c1", "c2", "c3"])
    await world.threads.prune_threads([held.thread_id], "keep_latest")
    found = await world.threads.history(held.thread_id)
    assert [(state.checkpoint_id, state.values) for state in found] == [
        ("c3", {"value": 2, "kept": "kept since 0"})
    ]


async def test_what_an_event_shows_has_a_row(world: World) -> None:
    held = await begun(world)
    long = "x" * REFERENCE_SIZE
    steps = [step(held, "c1", None, 0), step(held, "c2", "c1", long, "c1"), step(held, "c3", "c2", 2, "c1")]
    event = NewEvent("values", encode_json({"value": long}), Shown("c2", "", encode_json(["value"])))
    await world.queue.record(held, together(steps), [event])
    assert await counts(world, held.thread_id) == [2, 2, 1]
    await world.queue.finish(Ending(held=held, result="success"))
    first, *_ = await world.events(held.run_id)
    assert first.body == event.body


async def test_large_values_have_rows(world: World) -> None:
    held = await begun(world)
    noise = os.urandom(MAX_BYTES).hex()
    steps = [step(held, "c1", None, 0), step(held, "c2", "c1", noise, "c1"), step(held, "c3", "c2", 2, "c1")]
    await world.queue.record(held, together(steps))
    assert await counts(world, held.thread_id) == [3, 3, 2]


async def test_a_call_that_is_repeated_packs_the_same(world: World) -> None:
    held = await begun(world)
    made = together(chain(held, ["c1", "c2", "c3"]))
    for _ in range(2):
        assert await world.queue.record(held, made, told("a"), after=0) == 1
    assert [state.step for state in await world.threads.history(held.thread_id)] == [2, 1, 0]


async def test_a_checkpointer_on_the_same_database_finds_them(world: World) -> None:
    held = await packed_run(world, ["c1", "c2", "c3"])
    graphs = StoredCheckpoints(world.threads.storage, namespace=world.threads.namespace)
    found = await graphs.find(CheckpointQuery(thread_id=held.thread_id, checkpoint_ns=""))
    assert [each.checkpoint_id for each in found] == ["c3", "c2", "c1"]
    assert [each.step for each in await world.threads.history(held.thread_id)] == [2, 1, 0]


async def test_of_writes_with_one_number_the_first_counts_and_of_special_ones_the_last(world: World) -> None:
    """Written together and one by one. LangGraph gives errors, interrupts and resumes negative numbers."""
    found: list[list[tuple[int, Any]]] = []
    for at_once in (True, False):
        held = await begun(world)
        steps = chain(held, ["c1", "c2", "c3"])
        late = write(held, "c1", "late")
        special = [msgspec.structs.replace(write(held, "c1", text), idx=-1) for text in ("old", "new")]
        steps[2].changes.writes.extend([late, *special])
        for each in [together(steps)] if at_once else steps:
            await world.queue.record(held, each)
        assert await world.threads.read(is_packed, [held.thread_id]) is at_once
        first = (await tuples(world, held.thread_id))[-1]
        found.append([(each.idx, msgspec.msgpack.decode(each.value[1])) for each in first.writes])
    assert sorted(found[0]) == [(-1, "new"), (0, 1)]
    assert found[0] == found[1]


async def test_a_checkpoint_that_is_stored_twice_at_once_is_the_later_one(world: World) -> None:
    held = await begun(world)
    steps = chain(held, ["c1", "c2", "c3"])
    (put,) = steps[1].changes.puts
    again = msgspec.structs.replace(put, metadata={**put.metadata, "again": True})
    changed = GraphSteps(changes=GraphChanges(puts=[again]), states=[])
    await world.queue.record(held, together([*steps[:2], changed, steps[2]]))
    await world.queue.finish(Ending(held=held, result="success"))
    states = await world.threads.history(held.thread_id)
    assert [state.checkpoint_id for state in states] == ["c3", "c2", "c1"]
    assert [state.metadata.get("again") for state in states] == [None, True, None]
    assert [each.metadata.get("again") for each in await tuples(world, held.thread_id)] == [None, True, None]


async def test_a_copy_that_a_checkpointer_makes_has_all_checkpoints(world: World) -> None:
    held = await packed_run(world, ["c1", "c2", "c3"])
    graphs = StoredCheckpoints(world.threads.storage, namespace=world.threads.namespace)
    await graphs.copy_thread(held.thread_id, f"copy of {held.thread_id}")
    copied = await graphs.find(CheckpointQuery(thread_id=f"copy of {held.thread_id}"))
    assert [each.checkpoint_id for each in copied] == ["c3", "c2", "c1"]
    assert [len(each.writes) for each in copied] == [0, 1, 1]
