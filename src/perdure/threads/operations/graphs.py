"""States that graphs store in threads: small rows here, values in the pieces of checkpoints."""

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
    """State that a graph stores, or updates if it is stored already."""

    state: Checked
    again: bool = False
    packed: bool = False
    """True if the state does not have its own row."""


class Steps(msgspec.Struct, frozen=True):
    """Encoded work of a graph."""

    changes: EncodedChanges
    states: Sequence[GraphStep] = ()


class RecordSteps(msgspec.Struct, frozen=True):
    """Work of a run's graph, with the events about it."""

    held: Lease
    steps: Steps
    events: Sequence[NewEvent] = ()
    after: int | None = None
    """Number of the event before `events`. It identifies a repeated call, which is not carried out again."""


class ThreadSteps(NamedTuple):
    """Steps of one graph to store; the line of its thread is locked."""

    thread: ThreadRow
    run_id: str | None
    attempt: int | None
    steps: Steps


async def record_steps(
    tx: Tx, calls: Sequence[RecordSteps]
) -> list[AppendedEvents | int | Fenced | Conflict]:
    """Store the work of graphs; return the same answers as `append_events`."""
    fenced = await fence(tx, [call.held for call in calls])
    streams = await load_streams(tx, calls)
    threads = await load_threads(tx, [call.held.thread_id for call in calls], lock=True)
    stored = await stored_before(tx, [(call.held, unstored(call.events, call.steps)) for call in calls])
    answers: list[AppendedEvents | int | Fenced | Conflict] = []
    appends: list[tuple[int, StreamAppend]] = []
    updates: list[ThreadSteps] = []
    for number, call in enumerate(calls):
        attempt, run_id = fenced[call.held], call.held.run_id
        answer = attempt if isinstance(attempt, Fenced) else streams.answer(call, attempt)
        if answer is None and isinstance(attempt, int):
            updates.append(ThreadSteps(threads[call.held.thread_id], run_id, attempt, call.steps))
            if call.events:
                events = showing_graph(call.events, stored_in(call.steps) | stored.get(run_id, set()))
                appends.append((number, build_append(call.held, attempt, events)))
            streams.add(call, attempt)
        answers.append(streams.place(run_id) if answer is None else answer)
    await append_all(tx, appends, answers)
    await put_changes(tx, updates)
    await tx.defer(*build_rows(tx, updates).writes, moved(updates))
    return answers


def stored_in(steps: Steps) -> Checkpoints:
    """Return the checkpoints that are stored with steps."""
    return {(put.checkpoint_ns, put.checkpoint_id) for put in steps.changes.puts}


def unstored(events: Sequence[NewEvent], steps: Steps | None) -> Sequence[NewEvent]:
    """Return events that show a checkpoint not stored with these steps; it may be stored already."""
    if not are_shown(events):
        return ()
    new = set() if steps is None else {put.checkpoint_id for put in steps.changes.puts}
    return [event for event in events if event.shown is not None and event.shown.checkpoint_id not in new]


class Rows(NamedTuple):
    """Rows of states to write for steps. The rows of the threads are updated already."""

    new: list[StateRow]
    changed: list[StateChange]

    @property
    def writes(self) -> tuple[Write, Write]:
        return sql.ADD_GRAPH_STATES.of(self.new), sql.CHANGE_STATES.of(self.changed)


def build_rows(tx: Tx, updates: Iterable[ThreadSteps]) -> Rows:
    """Build the rows of states. A new state becomes its thread's latest."""
    rows = Rows([], [])
    for thread, run_id, attempt, steps in updates:
        for step in steps.states:
            if step.again:
                rows.changed.append(_changed(thread.id, step.state))
                continue
            row = new_state(tx, thread, step.state, run_id, attempt)
            if not step.packed:
                rows.new.append(row)
    return rows


async def put_changes(tx: Tx, updates: Iterable[ThreadSteps]) -> None:
    """Store the checkpoints of graphs."""
    encoded = [update.steps.changes for update in updates]
    if any(changes.puts or changes.writes for changes in encoded):
        await graphs.put(tx, encoded)


def _changed(thread_id: str, state: Checked) -> StateChange:
    return StateChange(thread_id, state.checkpoint_id or "", state.next, state.interrupts, state.values)


def moved(updates: Iterable[ThreadSteps]) -> Write:
    threads = {update.thread.id: update.thread for update in updates}
    return sql.MOVE_THREADS.of([threads[id] for id in sorted(threads)])


def with_shown(row: StateRow, step: GraphStep) -> StateRow | None:
    """Return a new state with its values, for waiters; None if the values are not in memory."""
    if row.body != IN_PIECES:
        return row
    shown = step.state.shown
    return None if shown is None else msgspec.structs.replace(row, body=shown)


# --- changes from outside a run ---------------------------------------------------------------------------


async def update(tx: Tx, thread: ThreadRow, steps: Steps) -> None:
    """Store a caller's change to the state of a graph. The thread is idle and its line is locked."""
    updates = [ThreadSteps(thread, None, None, steps)]
    await put_changes(tx, updates)
    rows = build_rows(tx, updates)
    if steps.states:
        thread.status = thread.rest = "interrupted" if steps.states[-1].state.is_unfinished else "idle"
    thread.error = None
    await tx.write(*rows.writes, moved(updates))
    changes.tell(tx, "thread", [(thread.id, thread.status)])
