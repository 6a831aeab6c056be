"""Creation, change, copy and reads of threads and their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.checkpoints.operations import copy_thread as copy_graphs
from perdure.kernel import changes, ids
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.json_values import has
from perdure.kernel.storage.filters import Clause
from perdure.kernel.storage.labels import copy_labels, set_labels
from perdure.kernel.storage.port import Tx
from perdure.rollouts.operations.lines import lock_lines
from perdure.service.audit import audit
from perdure.service.idempotency import keyed_as
from perdure.streams.model import NewEvent
from perdure.streams.operations import AppendedEvents, StreamAppend, append
from perdure.threads import sql
from perdure.threads.model import ROLLBACK
from perdure.threads.operations.execute import Checked, new_state
from perdure.threads.operations.graphs import Steps
from perdure.threads.operations.graphs import update as update_graph
from perdure.threads.operations.lifetimes import set_lifetimes
from perdure.threads.operations.packed import unpack_states
from perdure.threads.operations.remove import THREAD, purge_threads
from perdure.threads.operations.settle import load_threads, own_stream, thread_stream
from perdure.threads.operations.values import with_its_values, with_values
from perdure.threads.records import Lifetime
from perdure.threads.rows import Created, StateRow, ThreadAnswer, ThreadRow, decode_metadata, new_thread_row

LATEST = 2**62


class NewThread(msgspec.Struct, frozen=True):
    """Thread to create, with its bodies encoded."""

    thread_id: str | None
    metadata: str
    config: str
    checkpoint: Checked | None
    reuse: bool
    lifetime: Lifetime | None = None
    labels: Mapping[str, str] = {}
    """Encoded metadata to find threads by."""


class MergedMetadata(NamedTuple):
    """New metadata of a thread, merged with its metadata `known` outside the transaction."""

    known: str
    text: str
    labels: Mapping[str, str]


@keyed_as("create_thread")
async def create_threads(
    tx: Tx, requests: Sequence[NewThread]
) -> list[Created[ThreadAnswer] | tuple[str] | Conflict]:
    """Create each thread. For an existing thread, return only its ID, or a Conflict."""
    named = sorted({request.thread_id for request in requests if request.thread_id is not None})
    taken = await _known(tx, named)
    threads: list[ThreadRow] = []
    states: list[StateRow] = []
    answers: list[Created[ThreadAnswer] | tuple[str] | Conflict] = []
    lives: dict[str, Lifetime] = {}
    labels: dict[str, Mapping[str, str]] = {}
    for request in requests:
        thread_id = request.thread_id or ids.uuid(tx.now, tx.ids)
        if thread_id in taken:
            conflict = Conflict(f"Thread {thread_id} exists already")
            answers.append((thread_id,) if request.reuse else conflict)
            continue
        taken.add(thread_id)
        thread = new_thread_row(
            thread_id,
            tx.now,
            status="idle",
            temporary=None,
            config=request.config,
            metadata=request.metadata,
        )
        state: StateRow | None = None
        if request.checkpoint is not None:
            state = new_state(tx, thread, request.checkpoint, None, None)
            states.append(state)
        threads.append(thread)
        if request.labels:
            labels[thread_id] = request.labels
        if request.lifetime is not None:
            lives[thread_id] = request.lifetime
        answers.append(Created((thread_id,), (thread, state)))
    await tx.defer(sql.ADD_THREADS.of(threads), sql.ADD_CHECKPOINTS.of(states))
    if labels:
        await set_labels(tx, THREAD, labels)
    await set_lifetimes(tx, lives)
    changes.tell(tx, "thread", ((thread.id, thread.status) for thread in threads))
    created = [answer for answer in answers if not isinstance(answer, Conflict)]
    await audit(tx, "create_thread", [thread_id for named_ids in created for thread_id in named_ids])
    return answers


async def _known(tx: Tx, named: Sequence[str]) -> set[str]:
    """Return the threads that exist. Purge deleted threads now."""
    if not named:
        return set()
    await lock_lines(tx, named)
    threads = await load_threads(tx, named)
    await purge_threads(tx, [thread.id for thread in threads.values() if thread.is_gone])
    return {thread.id for thread in threads.values() if not thread.is_gone}


async def _visible(tx: Tx, thread_id: str) -> ThreadRow:
    thread = (await load_threads(tx, [thread_id], lock=True)).get(thread_id)
    if thread is None or thread.is_gone:
        raise NotFound(f"Thread {thread_id} not found")
    return thread


async def get_metadata(tx: Tx, thread_id: str) -> str:
    """Get the metadata of a thread as JSON."""
    thread = (await load_threads(tx, [thread_id])).get(thread_id)
    if thread is None or thread.is_gone:
        raise NotFound(f"Thread {thread_id} not found")
    return thread.metadata


async def update_thread(
    tx: Tx,
    thread_id: str,
    metadata: MergedMetadata | None,
    config: str | None,
    lifetime: Lifetime | None = None,
) -> bool:
    """Replace the metadata and the config, and set a lifetime that starts now.

    Return False and change nothing if the metadata is no longer `known`.
    """
    thread = await _visible(tx, thread_id)
    thread.updated_at = tx.now
    thread.config = thread.config if config is None else config
    if metadata is not None:
        if metadata.known != thread.metadata:
            return False
        thread.metadata = metadata.text
        await set_labels(tx, THREAD, {thread_id: metadata.labels})
    await tx.write(sql.EDIT_THREADS.of([thread]))
    if lifetime is not None:
        await set_lifetimes(tx, {thread_id: lifetime})
    changes.tell(tx, "thread", [(thread_id, thread.status)])
    await audit(tx, "update_thread", [thread_id])
    return True


@keyed_as("copy_thread")
async def copy_threads(tx: Tx, thread_ids: Sequence[str]) -> list[str | NotFound]:
    """Copy each thread with all its states; return the IDs of the copies."""
    await _lock_known(tx, thread_ids)
    threads = await load_threads(tx, thread_ids, lock=True)
    copies = [await _copy(tx, thread_id, threads.get(thread_id)) for thread_id in thread_ids]
    await audit(tx, "copy_thread", [copy_id for copy_id in copies if isinstance(copy_id, str)])
    return copies


async def _lock_known(tx: Tx, thread_ids: Sequence[str]) -> set[str]:
    """Lock the lines of existing threads. Locking others would create lines that stay."""
    existing = set(await load_threads(tx, thread_ids))
    await lock_lines(tx, existing)
    return existing


async def _copy(tx: Tx, thread_id: str, thread: ThreadRow | None) -> str | NotFound:
    if thread is None or thread.is_gone:
        return NotFound(f"Thread {thread_id} not found")
    copy = msgspec.structs.replace(
        thread, id=ids.uuid(tx.now, tx.ids), status=thread.rest, created_at=tx.now, updated_at=tx.now
    )
    copy.temporary = copy.single = None
    await unpack_states(tx, [thread_id])
    await tx.write(sql.ADD_THREADS.of([copy]))
    await tx.execute(sql.COPY_CHECKPOINTS, thread_id=thread_id, copy=copy.id, rollback=ROLLBACK)
    await copy_graphs(tx, thread_id, copy.id)
    await copy_labels(tx, THREAD, thread_id, copy.id)
    changes.tell(tx, "thread", [(copy.id, copy.status)])
    return copy.id


@keyed_as("update_state")
async def update_states(tx: Tx, updates: Sequence[tuple[str, Checked]]) -> list[str | NotFound | Conflict]:
    """Store a new state of each thread; return the IDs of the checkpoints."""
    existing = await _lock_known(tx, [thread_id for thread_id, _ in updates])
    answers: list[str | NotFound | Conflict] = []
    for thread_id, checkpoint in updates:
        try:
            if thread_id not in existing:
                raise NotFound(f"Thread {thread_id} not found")
            answers.append(await _update_state(tx, thread_id, checkpoint))
        except (NotFound, Conflict) as error:
            answers.append(error)
    updated = [
        thread_id for (thread_id, _), answer in zip(updates, answers, strict=True) if isinstance(answer, str)
    ]
    await audit(tx, "update_state", updated)
    return answers


async def _update_state(tx: Tx, thread_id: str, checkpoint: Checked) -> str:
    thread = await _resting(tx, thread_id)
    if checkpoint.parent_id is not None:
        await load_state(tx, thread_id, checkpoint.parent_id)
    row = new_state(tx, thread, checkpoint, None, None)
    thread.status = thread.rest = "interrupted" if checkpoint.is_unfinished else "idle"
    thread.error = None
    await tx.write(sql.ADD_CHECKPOINTS.of([row]), sql.MOVE_THREADS.of([thread]))
    changes.tell(tx, "thread", [(thread_id, thread.status)])
    return row.id


async def _resting(tx: Tx, thread_id: str) -> ThreadRow:
    """Lock the thread and return it; Conflict while it is busy."""
    await lock_lines(tx, [thread_id])
    thread = await _visible(tx, thread_id)
    for run in await tx.all(sql.LIVE_RUNS, thread_ids=[thread_id]):
        raise Conflict(f"Thread {thread_id} is busy with run {run.id}; its state can be changed afterwards")
    return thread


async def update_graph_state(tx: Tx, thread_id: str, steps: Steps, after: str | None) -> None:
    """Store a caller's change to the graph state of a thread."""
    await change_graph(tx, thread_id, steps, after)
    await audit(tx, "update_state", [thread_id])


async def change_graph(tx: Tx, thread_id: str, steps: Steps, after: str | None) -> None:
    """Store changes to the graph state of an idle thread whose latest state is still `after`."""
    thread = await _resting(tx, thread_id)
    if thread.checkpoint_id != after:
        raise Conflict(f"Thread {thread_id} has a newer state; read it and change that one")
    await update_graph(tx, thread, steps)


async def load_state(tx: Tx, thread_id: str, checkpoint_id: str) -> StateRow:
    """Get a state of a thread, without values that a graph stores in pieces."""
    row = await tx.one(sql.GET_CHECKPOINT, thread_id=thread_id, id=checkpoint_id)
    if row is None:
        raise NotFound(f"Checkpoint {checkpoint_id} not found in thread {thread_id}")
    return row


async def append_event(tx: Tx, thread_id: str, event: NewEvent) -> AppendedEvents:
    """Append an event of the thread itself to its stream."""
    await _visible(tx, thread_id)
    new = StreamAppend(own_stream(thread_id), [event], into=thread_stream(thread_id))
    (place,) = await append(tx, [new])
    return new, place


# --- reading ----------------------------------------------------------------------------------------------


async def get_thread(tx: Tx, thread_id: str, gone: bool = False) -> ThreadAnswer:
    """Get a thread with its state; with `gone` also a deleted thread, for callers that waited for it."""
    thread = (await load_threads(tx, [thread_id])).get(thread_id)
    if thread is None or (thread.is_gone and not gone):
        raise NotFound(f"Thread {thread_id} not found")
    if thread.checkpoint_id is None:
        return thread, None
    state = await tx.one(sql.GET_CHECKPOINT, thread_id=thread_id, id=thread.checkpoint_id)
    return thread, None if state is None else await with_its_values(tx, state)


async def get_threads(tx: Tx, thread_ids: Sequence[str]) -> list[ThreadAnswer | NotFound]:
    """Get threads with their states; NotFound for a thread that is not visible."""
    threads = await load_threads(tx, list(set(thread_ids)))
    visible = {thread.id: thread for thread in threads.values() if not thread.is_gone}
    states = await get_states(tx, list(visible.values()))
    return [
        (visible[id], states.get(id)) if id in visible else NotFound(f"Thread {id} not found")
        for id in thread_ids
    ]


async def peek_state(tx: Tx, thread_id: str, checkpoint_id: str | None) -> StateRow | None:
    """Get a state, without values that a graph stores in pieces."""
    thread = (await load_threads(tx, [thread_id])).get(thread_id)
    if thread is None or thread.is_gone:
        raise NotFound(f"Thread {thread_id} not found")
    wanted = checkpoint_id or thread.checkpoint_id
    return None if wanted is None else await load_state(tx, thread_id, wanted)


async def get_state(tx: Tx, thread_id: str, checkpoint_id: str | None) -> StateRow | None:
    _, latest = await get_thread(tx, thread_id)
    if checkpoint_id is None:
        return latest
    return await with_its_values(tx, await load_state(tx, thread_id, checkpoint_id))


async def history(
    tx: Tx,
    thread_id: str,
    limit: int,
    before: str | None,
    metadata: Mapping[str, Any],
    values_too: bool = True,
) -> list[StateRow]:
    """List the states of a thread, the newest first. With a filter, pages are read until enough match."""
    await get_thread(tx, thread_id)
    place = LATEST if before is None else (await load_state(tx, thread_id, before)).position
    states: list[StateRow] = []
    while len(states) < limit:
        page, values = sql.LIST_CHECKPOINTS.page(Clause("TRUE", {}), sql.STATE_ORDER, limit, 0)
        rows = await tx.all(page, thread_id=thread_id, before=place, **values)
        states += [row for row in rows if not metadata or has(decode_metadata(row.metadata), metadata)]
        if len(rows) < limit or not metadata:
            break
        place = rows[-1].position
    return await with_values(tx, states[:limit]) if values_too else states[:limit]


async def get_states(tx: Tx, threads: Sequence[ThreadRow]) -> dict[str, StateRow]:
    """Get the latest state of each thread that has one."""
    latest = await latest_states(tx, threads)
    return {row.thread_id: row for row in await with_values(tx, list(latest.values()))}


async def latest_states(tx: Tx, threads: Sequence[ThreadRow]) -> dict[str, StateRow]:
    """Get the latest states, without values that a graph stores in pieces."""
    wanted = [thread.id for thread in threads if thread.checkpoint_id is not None]
    rows = await tx.all(sql.LATEST_STATES, thread_ids=wanted) if wanted else []
    return {row.thread_id: row for row in rows}
