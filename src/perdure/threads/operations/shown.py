"""Events that show a state: which of them are stored as references to it, and the data that these have.

An event refers to a checkpoint only if the same run stores that checkpoint, with the event or before it, in
the run's own thread. Whatever else a worker says of an event is ignored, and its data is stored with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from perdure.checkpoints import references as graph_references
from perdure.checkpoints.operations import stored_by
from perdure.checkpoints.rows import StoredRow
from perdure.kernel.storage.port import Tx
from perdure.streams.model import REFERENCE_SIZE, VALUES, NewEvent, Reference, Shown
from perdure.streams.operations import store_bodies
from perdure.threads import sql
from perdure.threads.model import StateKey
from perdure.threads.work import Lease

Checkpoints = set[tuple[str, str]]
"""Checkpoints of one thread's graphs: their namespaces and ids."""


def are_shown(events: Iterable[NewEvent]) -> bool:
    return any(event.shown is not None for event in events)


def showing_graph(events: Sequence[NewEvent], stored: Checkpoints) -> Sequence[NewEvent]:
    """The events of a graph's run, which refer to what of its checkpoints is stored."""
    if not are_shown(events):
        return events
    return [event if _is_stored(event.shown, stored) else _with_data(event) for event in events]


def _is_stored(shown: Shown | None, stored: Checkpoints) -> bool:
    return shown is None or (
        shown.keys is not None and (shown.checkpoint_ns or "", shown.checkpoint_id) in stored
    )


def _with_data(event: NewEvent) -> NewEvent:
    return msgspec.structs.replace(event, shown=None)


def showing_state(events: Sequence[NewEvent], values: str, checkpoint_id: str) -> Sequence[NewEvent]:
    """The events that are stored with a state of their thread: one that shows its values refers to it."""
    last = events[-1] if events else None
    if last is None or last.event != VALUES or len(values) < REFERENCE_SIZE or last.body != values:
        return [_with_data(event) for event in events] if are_shown(events) else events
    return [*map(_with_data, events[:-1]), NewEvent(VALUES, last.body, Shown(checkpoint_id))]


async def stored_before(tx: Tx, calls: Iterable[tuple[Lease, Sequence[NewEvent]]]) -> dict[str, Checkpoints]:
    """The checkpoints that runs have stored before, of those that their events show, by run."""
    shown = [
        StoredRow(held.thread_id, held.run_id, event.shown.checkpoint_ns or "", event.shown.checkpoint_id)
        for held, events in calls
        for event in events
        if event.shown is not None
    ]
    return await stored_by(tx, shown) if shown else {}


# --- what references stand for ----------------------------------------------------------------------------


async def resolve(tx: Tx, references: Collection[Reference]) -> dict[Reference, str]:
    """The states that references stand for, as JSON."""
    found = await graph_references.resolve(tx, references)
    states = [each for each in references if each.keys is None]
    if states:
        threads = sorted({each.thread_id for each in states})
        ids = sorted({each.checkpoint_id for each in states})
        rows = await tx.all(sql.GET_BODIES, thread_ids=threads, ids=ids)
        bodies = {StateKey(row.thread_id, row.id): row.body for row in rows}
        for each in states:
            body = bodies.get(StateKey(each.thread_id, each.checkpoint_id))
            if body is not None:
                found[each] = body
    return found


async def store_run_states(tx: Tx, run_ids: Sequence[str]) -> None:
    """Give the events that show states of these runs their data, before the states are removed."""
    removed = set(await tx.all(sql.STATES_OF_RUNS, ids=list(run_ids)))
    for thread_id in sorted({thread_id for thread_id, _ in removed}):
        await store_bodies(
            tx,
            thread_id,
            lambda each: each.keys is None and StateKey(each.thread_id, each.checkpoint_id) in removed,
            resolve,
        )


async def store_earlier_states(tx: Tx, thread_id: str, checkpoint_id: str) -> None:
    """The same for all states of a thread but one."""
    await store_bodies(
        tx, thread_id, lambda each: each.keys is None and each.checkpoint_id != checkpoint_id, resolve
    )
