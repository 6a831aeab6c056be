"""The states that graphs make of threads: small rows here, and values in the pieces of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from perdure.checkpoints import operations as graphs
from perdure.checkpoints.rows import EncodedChanges
from perdure.kernel import changes
from perdure.kernel.errors import Conflict, Fenced
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Tx
from perdure.streams.model import NewEvent
from perdure.streams.operations import AppendedEvents, StreamAppend
from perdure.threads import sql
from perdure.threads.operations.execute import (
    Checked,
    append_all,
    build_append,
    fence,
    load_streams,
    new_state,
)
from perdure.threads.operations.settle import load_threads
from perdure.threads.operations.shown import Checkpoints, are_shown, showing_graph, stored_before
from perdure.threads.rows import IN_PIECES, StateChange, StateRow, ThreadRow
from perdure.threads.work import Lease


class GraphStep(msgspec.Struct, frozen=True):
    """A state that a graph made. One that was kept before is brought up to date."""

    state: Checked
    again: bool = False
    packed: bool = False
    """Whether it gets no row of its own."""


class Steps(msgspec.Struct, frozen=True):
    """What a graph has done, with its bodies encoded."""

    changes: EncodedChanges
    states: Sequence[GraphStep] = ()


class RecordSteps(msgspec.Struct, frozen=True):
    """What the graph of a run has done, with the events that tell of it."""

    held: Lease
    steps: Steps
    events: Sequence[NewEvent] = ()
    after: int | None = None
    """The number of the event that these follow; a call that is repeated by it is not carried out again."""


class ThreadSteps(NamedTuple):
    """The steps of one graph on their way into the tables; the line of its thread is locked."""

    thread: ThreadRow
    run_id: str | None
    attempt: int | None
    steps: Steps


async def record_steps(
    tx: Tx, calls: Sequence[RecordSteps]
) -> list[AppendedEvents | int | Fenced | Conflict]:
    """Keep what graphs have done; the answers are those of `append_events`."""
    fenced = await fence(tx, [call.held for call in calls])
    streams = await load_streams(tx, calls)
    threads = await load_threads(tx, [call.held.thread_id for call in calls], lock=True)
    stored = await stored_before(tx, [(call.held, unstored(call.events, call.steps)) for call in calls])
    answers: list[AppendedEvents | int | Fenced | Conflict] = []
    appends: list[tuple[int, StreamAppend]] = []
    made: list[ThreadSteps] = []
    for number, call in enumerate(calls):
        attempt, run_id = fenced[call.held], call.held.run_id
        answer = attempt if isinstance(attempt, Fenced) else streams.answer(call, attempt)
        if answer is None and isinstance(attempt, int):
            made.append(ThreadSteps(threads[call.held.thread_id], run_id, attempt, call.steps))
            if call.events:
                events = showing_graph(call.events, stored_in(call.steps) | stored.get(run_id, set()))
                appends.append((number, build_append(call.held, attempt, events)))
            streams.add(call, attempt)
        answers.append(streams.place(run_id) if answer is None else answer)
    await append_all(tx, appends, answers)
    await put_changes(tx, made)
    await tx.defer(*build_rows(tx, made).writes, moved(made))
    return answers


def stored_in(steps: Steps) -> Checkpoints:
    """The checkpoints that are stored with steps."""
    return {(put.checkpoint_ns, put.checkpoint_id) for put in steps.changes.puts}


def unstored(events: Sequence[NewEvent], steps: Steps | None) -> Sequence[NewEvent]:
    """The events that show a checkpoint which is not stored with these steps; it may have been before."""
    if not are_shown(events):
        return ()
    new = set() if steps is None else {put.checkpoint_id for put in steps.changes.puts}
    return [event for event in events if event.shown is not None and event.shown.checkpoint_id not in new]


class Rows(NamedTuple):
    """What steps mean for the table of states; their threads have moved with them."""

    new: list[StateRow]
    changed: list[StateChange]

    @property
    def writes(self) -> tuple[Write, Write]:
        return sql.ADD_GRAPH_STATES.of(self.new), sql.CHANGE_STATES.of(self.changed)


def build_rows(tx: Tx, made: Iterable[ThreadSteps]) -> Rows:
    """The states that steps make; a new one becomes its thread's."""
    rows = Rows([], [])
    for thread, run_id, attempt, steps in made:
        for step in steps.states:
            if step.again:
                rows.changed.append(_changed(thread.id, step.state))
                continue
            row = new_state(tx, thread, step.state, run_id, attempt)
            if not step.packed:
                rows.new.append(row)
    return rows


async def put_changes(tx: Tx, made: Iterable[ThreadSteps]) -> None:
    """Keep the checkpoints themselves."""
    encoded = [each.steps.changes for each in made]
    if any(each.puts or each.writes for each in encoded):
        await graphs.put(tx, encoded)


def _changed(thread_id: str, state: Checked) -> StateChange:
    return StateChange(thread_id, state.checkpoint_id or "", state.next, state.interrupts, state.values)


def moved(made: Iterable[ThreadSteps]) -> Write:
    threads = {each.thread.id: each.thread for each in made}
    return sql.MOVE_THREADS.of([threads[id] for id in sorted(threads)])


def known(row: StateRow, step: GraphStep) -> StateRow | None:
    """A new state with its values, for those who wait for it; None if they are not at hand."""
    if row.body != IN_PIECES:
        return row
    shown = step.state.shown
    return None if shown is None else msgspec.structs.replace(row, body=shown)


# --- changes from outside a run ---------------------------------------------------------------------------


async def update(tx: Tx, thread: ThreadRow, steps: Steps) -> None:
    """Keep what somebody changed in the state of a graph; the thread rests, and its line is locked."""
    made = [ThreadSteps(thread, None, None, steps)]
    await put_changes(tx, made)
    rows = build_rows(tx, made)
    if steps.states:
        thread.status = thread.rest = "interrupted" if steps.states[-1].state.is_unfinished else "idle"
    thread.error = None
    await tx.write(*rows.writes, moved(made))
    changes.tell(tx, "thread", [(thread.id, thread.status)])
