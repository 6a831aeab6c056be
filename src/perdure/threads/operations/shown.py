"""Events that show a state: which of them are stored as references, and the data of references.

An event refers to a checkpoint only if the same run stores that checkpoint, with the event or before it, in
its own thread. Any other reference from a worker is ignored, and the event is stored with its data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from perdure.checkpoints import queries as graph_references
from perdure.checkpoints.operations import stored_by
from perdure.checkpoints.rows import StoredRow
from perdure.kernel.storage.port import Tx
from perdure.streams.model import REFERENCE_SIZE, VALUES, NewEvent, Reference, Shown
from perdure.streams.operations import store_bodies
from perdure.threads import sql
from perdure.threads.model import StateKey
from perdure.threads.work import Lease

Checkpoints = set[tuple[str, str]]
"""Checkpoints of one thread's graphs, by namespace and ID."""


def are_shown(events: Iterable[NewEvent]) -> bool:
    return any(event.shown is not None for event in events)


def showing_graph(events: Sequence[NewEvent], stored: Checkpoints) -> Sequence[NewEvent]:
    """Replace the data of events with references to stored checkpoints of a graph."""
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
    """Replace the data of the last event with a reference, if it shows the values of the stored state."""
    last = events[-1] if events else None
    if last is None or last.event != VALUES or len(values) < REFERENCE_SIZE or last.body != values:
        return [_with_data(event) for event in events] if are_shown(events) else events
    return [*map(_with_data, events[:-1]), NewEvent(VALUES, last.body, Shown(checkpoint_id))]


async def stored_before(tx: Tx, calls: Iterable[tuple[Lease, Sequence[NewEvent]]]) -> dict[str, Checkpoints]:
    """Return the checkpoints that each run has already stored, of the checkpoints that its events show."""
    shown = [
        StoredRow(held.thread_id, held.run_id, event.shown.checkpoint_ns or "", event.shown.checkpoint_id)
        for held, events in calls
        for event in events
        if event.shown is not None
    ]
    return await stored_by(tx, shown) if shown else {}


# --- resolving references ---------------------------------------------------------------------------------


async def resolve(tx: Tx, references: Collection[Reference]) -> dict[Reference, str]:
    """Return the states that references name, as JSON."""
    texts = await graph_references.resolve(tx, references)
    states = [reference for reference in references if reference.keys is None]
    if states:
        threads = sorted({reference.thread_id for reference in states})
        ids = sorted({reference.checkpoint_id for reference in states})
        rows = await tx.all(sql.GET_BODIES, thread_ids=threads, ids=ids)
        bodies = {StateKey(row.thread_id, row.id): row.body for row in rows}
        for reference in states:
            body = bodies.get(StateKey(reference.thread_id, reference.checkpoint_id))
            if body is not None:
                texts[reference] = body
    return texts


async def store_run_states(tx: Tx, run_ids: Sequence[str]) -> None:
    """Store the data of events that refer to states of these runs, before the states are deleted."""
    removed = set(await tx.all(sql.STATES_OF_RUNS, ids=list(run_ids)))
    for thread_id in sorted({thread_id for thread_id, _ in removed}):
        await store_bodies(
            tx,
            thread_id,
            lambda ref: ref.keys is None and StateKey(ref.thread_id, ref.checkpoint_id) in removed,
            resolve,
        )


async def store_earlier_states(tx: Tx, thread_id: str, checkpoint_id: str) -> None:
    """Store the data of events that refer to states of a thread, except one state."""
    await store_bodies(
        tx, thread_id, lambda ref: ref.keys is None and ref.checkpoint_id != checkpoint_id, resolve
    )
