"""The states that graphs make of threads: small rows here, and values in the pieces of the graphs room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.graphs import operations as graphs
from perdure.graphs.records import GraphChanges, GraphPut, GraphQuery, GraphTuple, GraphWrite
from perdure.graphs.view import values_of
from perdure.kernel import changes
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import Conflict, Fenced
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Row, Tx
from perdure.streams.model import NewEvent
from perdure.streams.operations import Append
from perdure.threads import sql
from perdure.threads.operations.execute import (
    Checked,
    append_all,
    events_of,
    fence,
    new_state,
    repeated,
    stream_places,
)
from perdure.threads.operations.rows import ThreadRow
from perdure.threads.operations.settle import Placed, load_threads
from perdure.threads.work import Held

IN_PIECES = ""
"""The body of a state whose values are in pieces; no JSON is empty."""
BODY = 11
"""Where the body stands in a row of checkpoints."""


class Step(msgspec.Struct, frozen=True):
    """A state that a graph made. One that was kept before is brought up to date."""

    state: Checked
    again: bool = False


class Steps(msgspec.Struct, frozen=True):
    """What a graph has done, with its bodies encoded."""

    changes: GraphChanges
    states: Sequence[Step] = ()


class Recorded(msgspec.Struct, frozen=True):
    """What the graph of a run has done, with the events that tell of it."""

    held: Held
    steps: Steps
    events: Sequence[NewEvent] = ()
    after: int | None = None
    """The number of the event that these follow; a call that is repeated by it is not carried out again."""


class Made(NamedTuple):
    """The steps of one graph on their way into the tables; the line of its thread is locked."""

    thread: ThreadRow
    run_id: str | None
    attempt: int | None
    steps: Steps


async def record(tx: Tx, calls: Sequence[Recorded]) -> list[Placed | int | Fenced | Conflict]:
    """Keep what graphs have done; the answers are those of `tell`."""
    fenced = await fence(tx, [call.held for call in calls])
    known = await stream_places(tx, [call for call in calls if call.after is not None])
    threads = await load_threads(tx, [call.held.thread_id for call in calls], lock=True)
    answers: list[Placed | int | Fenced | Conflict] = []
    appends: list[tuple[int, Append]] = []
    made: list[Made] = []
    for number, call in enumerate(calls):
        attempt, run_id = fenced[call.held], call.held.run_id
        answer = attempt if isinstance(attempt, Fenced) else repeated(call, known)
        if answer is None and isinstance(attempt, int):
            made.append(Made(threads[call.held.thread_id], run_id, attempt, call.steps))
            if call.events:
                appends.append((number, events_of(call.held, attempt, call.events)))
            known[run_id] = known.get(run_id, 0) + len(call.events)
        answers.append(known.get(run_id, 0) if answer is None else answer)
    await append_all(tx, appends, answers)
    await tx.later(*await kept(tx, made), moved(tx, made))
    return answers


async def kept(tx: Tx, made: Iterable[Made]) -> list[Write]:
    """Keep the checkpoints, and give the writes of the states; the threads move with them."""
    rows: list[tuple[Any, ...]] = []
    changed: list[tuple[Any, ...]] = []
    puts: list[GraphPut] = []
    writes: list[GraphWrite] = []
    for thread, run_id, attempt, steps in made:
        puts += steps.changes.puts
        writes += steps.changes.writes
        for step in steps.states:
            if step.again:
                changed.append(_changed(tx, thread.id, step.state))
            else:
                rows.append(new_state(tx, thread, step.state, run_id, attempt))
    if puts or writes:
        await graphs.put(tx, GraphChanges(puts=puts, writes=writes))
    return [(sql.ADD_GRAPH_STATES, rows), (sql.CHANGE_STATES, changed)]


def _changed(tx: Tx, thread_id: str, state: Checked) -> tuple[Any, ...]:
    return (state.next, state.interrupts, state.values, tx.ns, state.checkpoint_id, thread_id)


def moved(tx: Tx, made: Iterable[Made]) -> Write:
    threads = {each.thread.id: each.thread for each in made}
    return (sql.MOVE_THREADS, [threads[id].moved(tx.ns) for id in sorted(threads)])


# --- changes from outside a run ---------------------------------------------------------------------------


async def update(tx: Tx, thread: ThreadRow, steps: Steps) -> None:
    """Keep what somebody changed in the state of a graph; the thread rests, and its line is locked."""
    made = [Made(thread, None, None, steps)]
    writes = await kept(tx, made)
    if steps.states:
        thread.status = thread.rest = "interrupted" if decode_json(steps.states[-1].state.next) else "idle"
    thread.error = None
    await tx.write(*writes, moved(tx, made))
    changes.tell(tx, "thread", [(thread.id, thread.status)])


# --- reading ----------------------------------------------------------------------------------------------


async def find(tx: Tx, query: GraphQuery) -> list[GraphTuple]:
    return await graphs.find(tx, query)


async def filled(tx: Tx, rows: Sequence[Row]) -> list[Row]:
    """Rows of checkpoints with the values of those that are in pieces."""
    return [await _filled(tx, row) if row[BODY] == IN_PIECES else row for row in rows]


async def filled_one(tx: Tx, row: Row | None) -> Row | None:
    return row if row is None or row[BODY] != IN_PIECES else await _filled(tx, row)


async def filled_states(tx: Tx, states: Mapping[str, Row]) -> dict[str, Row]:
    return {key: await _filled(tx, row) if row[BODY] == IN_PIECES else row for key, row in states.items()}


async def _filled(tx: Tx, row: Row) -> Row:
    found = await graphs.find(tx, GraphQuery(thread_id=row[0], checkpoint_ns="", checkpoint_id=row[1]))
    body = encode_json(values_of(found[0]), what="values", nan="keep") if found else "null"
    return (*row[:BODY], body, *row[BODY + 1 :])
