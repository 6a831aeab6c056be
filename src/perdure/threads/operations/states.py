"""Making, changing, copying and reading threads and their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.access.operations import audit, keyed_as
from perdure.graphs.operations import copy_thread as copy_graphs
from perdure.kernel import changes, ids
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.match import has
from perdure.kernel.storage.filters import Clause
from perdure.kernel.storage.labels import set_labels
from perdure.kernel.storage.port import Row, Tx
from perdure.rollouts.operations.lines import lock_lines
from perdure.threads import sql
from perdure.threads.model import ROLLBACK
from perdure.threads.operations.execute import Checked, new_state
from perdure.threads.operations.filling import filled, filled_one, filled_states
from perdure.threads.operations.graphs import Steps
from perdure.threads.operations.graphs import update as update_graph
from perdure.threads.operations.lifetimes import set_lifetimes
from perdure.threads.operations.remove import THREAD, purge_threads
from perdure.threads.operations.rows import Made, ThreadAnswer, ThreadRow
from perdure.threads.operations.settle import load_threads
from perdure.threads.records import Lifetime

LATEST = 2**62


class NewThread(msgspec.Struct, frozen=True):
    """A thread to be made, with its bodies encoded."""

    thread_id: str | None
    metadata: str
    config: str
    checkpoint: Checked | None
    reuse: bool
    lifetime: Lifetime | None = None


@keyed_as("create_thread")
async def create_threads(tx: Tx, requests: Sequence[NewThread]) -> list[Row | Conflict]:
    """Make each thread; the answers are rows with its id, and whole threads with them where they are new."""
    named = sorted({request.thread_id for request in requests if request.thread_id is not None})
    known = await _known(tx, named)
    threads: list[ThreadRow] = []
    states: list[tuple[Any, ...]] = []
    answers: list[Row | Conflict] = []
    lives: dict[str, Lifetime] = {}
    for request in requests:
        thread_id = request.thread_id or ids.uuid(tx.now, tx.ids)
        if thread_id in known:
            there = (thread_id,) if request.reuse else Conflict(f"Thread {thread_id} exists already")
            answers.append(there)
            continue
        known.add(thread_id)
        thread = _new_thread(tx, thread_id, request)
        state: tuple[Any, ...] | None = None
        if request.checkpoint is not None:
            state = new_state(tx, thread, request.checkpoint, None, None)
            states.append(state)
        threads.append(thread)
        if request.lifetime is not None:
            lives[thread_id] = request.lifetime
        answers.append(Made((thread_id,), (thread, None if state is None else state[1:])))
    rows = [(tx.ns, *msgspec.structs.astuple(thread)) for thread in threads]
    await tx.defer((sql.ADD_THREADS, rows), (sql.ADD_CHECKPOINTS, states))
    await _label(tx, threads)
    await set_lifetimes(tx, lives)
    changes.tell(tx, "thread", ((thread.id, thread.status) for thread in threads))
    await audit(tx, "create_thread", [each[0] for each in answers if not isinstance(each, Conflict)])
    return answers


async def _known(tx: Tx, named: Sequence[str]) -> set[str]:
    """The threads that are there; what is on its way out goes now."""
    if not named:
        return set()
    await lock_lines(tx, named)
    found = await load_threads(tx, named)
    await purge_threads(tx, [thread.id for thread in found.values() if thread.gone_at is not None])
    return {thread.id for thread in found.values() if thread.gone_at is None}


def _new_thread(tx: Tx, thread_id: str, request: NewThread) -> ThreadRow:
    now = tx.now
    return ThreadRow(
        thread_id, "idle", "idle", None, None, now, now, now, None, 0, None, request.config, request.metadata
    )


async def _label(tx: Tx, threads: Sequence[ThreadRow]) -> None:
    labels = {thread.id: decode_json(thread.metadata) for thread in threads if thread.metadata != "{}"}
    if labels:
        await set_labels(tx, THREAD, labels)


async def _visible(tx: Tx, thread_id: str) -> ThreadRow:
    thread = (await load_threads(tx, [thread_id], lock=True)).get(thread_id)
    if thread is None or thread.gone_at is not None:
        raise NotFound(f"Thread {thread_id} not found")
    return thread


async def update_thread(
    tx: Tx,
    thread_id: str,
    metadata: Mapping[str, Any] | None,
    config: Mapping[str, Any] | None,
    lifetime: Lifetime | None = None,
) -> None:
    """Merge into the metadata, replace the config, and let the thread live for so long from now."""
    thread = await _visible(tx, thread_id)
    if metadata is not None:
        thread.metadata = encode_json({**decode_json(thread.metadata), **metadata}, what="metadata")
    if config is not None:
        thread.config = encode_json(dict(config), what="config")
    await tx.write((sql.EDIT_THREADS, [(thread.config, thread.metadata, tx.now, tx.ns, thread_id)]))
    if metadata is not None:
        await set_labels(tx, THREAD, {thread_id: decode_json(thread.metadata)})
    if lifetime is not None:
        await set_lifetimes(tx, {thread_id: lifetime})
    changes.tell(tx, "thread", [(thread_id, thread.status)])
    await audit(tx, "update_thread", [thread_id])


@keyed_as("copy_thread")
async def copy_threads(tx: Tx, thread_ids: Sequence[str]) -> list[str | NotFound]:
    """Create a thread with all states of each of these; the answers are the ids of the copies."""
    await lock_lines(tx, sorted(set(thread_ids)))
    threads = await load_threads(tx, thread_ids, lock=True)
    copies = [await _copy(tx, each, threads.get(each)) for each in thread_ids]
    await audit(tx, "copy_thread", [each for each in copies if isinstance(each, str)])
    return copies


async def _copy(tx: Tx, thread_id: str, thread: ThreadRow | None) -> str | NotFound:
    if thread is None or thread.gone_at is not None:
        return NotFound(f"Thread {thread_id} not found")
    copy = msgspec.structs.replace(
        thread, id=ids.uuid(tx.now, tx.ids), status=thread.rest, created_at=tx.now, updated_at=tx.now
    )
    copy.temporary = None
    await tx.write((sql.ADD_THREADS, [(tx.ns, *msgspec.structs.astuple(copy))]))
    await tx.execute(sql.COPY_CHECKPOINTS, thread_id=thread_id, copy=copy.id, rollback=ROLLBACK)
    await copy_graphs(tx, thread_id, copy.id)
    await _label(tx, [copy])
    changes.tell(tx, "thread", [(copy.id, copy.status)])
    return copy.id


async def update_state(tx: Tx, thread_id: str, checkpoint: Checked) -> Row:
    """Keep another state of a thread that rests."""
    thread = await _resting(tx, thread_id)
    if checkpoint.parent_id is not None:
        await _check_state(tx, thread_id, checkpoint.parent_id)
    row = new_state(tx, thread, checkpoint, None, None)
    thread.status = thread.rest = "interrupted" if decode_json(checkpoint.next) else "idle"
    thread.error = None
    await tx.write((sql.ADD_CHECKPOINTS, [row]), (sql.MOVE_THREADS, [thread.moved(tx.ns)]))
    changes.tell(tx, "thread", [(thread_id, thread.status)])
    await audit(tx, "update_state", [thread_id])
    return row[1:]


async def _resting(tx: Tx, thread_id: str) -> ThreadRow:
    """The thread, locked; Conflict while it is busy."""
    await lock_lines(tx, [thread_id])
    thread = await _visible(tx, thread_id)
    live = [row[1] for row in await tx.all(sql.LIVE_RUNS, thread_ids=[thread_id])]
    if live:
        raise Conflict(f"Thread {thread_id} is busy with run {live[0]}; its state can be changed afterwards")
    return thread


async def update_graph_state(tx: Tx, thread_id: str, steps: Steps, after: str | None) -> None:
    """Keep what somebody changed in the graph of a thread that rests, and whose state is still the same."""
    thread = await _resting(tx, thread_id)
    if thread.checkpoint_id != after:
        raise Conflict(f"Thread {thread_id} has another state meanwhile; read it and change that one")
    await update_graph(tx, thread, steps)
    await audit(tx, "update_state", [thread_id])


async def _check_state(tx: Tx, thread_id: str, checkpoint_id: str) -> Row:
    row = await tx.one(sql.GET_CHECKPOINT, thread_id=thread_id, id=checkpoint_id)
    if row is None:
        raise NotFound(f"Checkpoint {checkpoint_id} not found in thread {thread_id}")
    return row


# --- reading ----------------------------------------------------------------------------------------------


async def get_thread(tx: Tx, thread_id: str, gone: bool = False) -> ThreadAnswer:
    """A thread with its state; `gone` for whoever waited for it while it was there."""
    thread = (await load_threads(tx, [thread_id])).get(thread_id)
    if thread is None or (thread.gone_at is not None and not gone):
        raise NotFound(f"Thread {thread_id} not found")
    if thread.checkpoint_id is None:
        return thread, None
    state = await tx.one(sql.GET_CHECKPOINT, thread_id=thread_id, id=thread.checkpoint_id)
    return thread, await filled_one(tx, state)


async def get_threads(tx: Tx, thread_ids: Sequence[str]) -> list[ThreadAnswer | NotFound]:
    """Threads with their states; one that is not in sight is answered with why."""
    threads = await load_threads(tx, list(set(thread_ids)))
    seen = {thread.id: thread for thread in threads.values() if thread.gone_at is None}
    states = await states_of(tx, list(seen.values()))
    return [
        (seen[each], states.get(each)) if each in seen else NotFound(f"Thread {each} not found")
        for each in thread_ids
    ]


async def peek_state(tx: Tx, thread_id: str, checkpoint_id: str | None) -> Row | None:
    """A state as it is kept."""
    thread = (await load_threads(tx, [thread_id])).get(thread_id)
    if thread is None or thread.gone_at is not None:
        raise NotFound(f"Thread {thread_id} not found")
    wanted = checkpoint_id or thread.checkpoint_id
    return None if wanted is None else await _check_state(tx, thread_id, wanted)


async def get_state(tx: Tx, thread_id: str, checkpoint_id: str | None) -> Row | None:
    _, latest = await get_thread(tx, thread_id)
    if checkpoint_id is None:
        return latest
    return await filled_one(tx, await _check_state(tx, thread_id, checkpoint_id))


async def history(
    tx: Tx, thread_id: str, limit: int, before: str | None, metadata: Mapping[str, Any]
) -> list[Row]:
    """The states of a thread, the newest first; filtered, they are read until there are enough."""
    await get_thread(tx, thread_id)
    place = LATEST if before is None else (await _check_state(tx, thread_id, before))[2]
    found: list[Row] = []
    while len(found) < limit:
        page, values = sql.LIST_CHECKPOINTS.page(Clause("TRUE", {}), " ORDER BY position DESC", limit, 0)
        rows = await tx.all(page, thread_id=thread_id, before=place, **values)
        found += [row for row in rows if not metadata or has(decode_json(row[10]), metadata)]
        if len(rows) < limit or not metadata:
            break
        place = rows[-1][2]
    return await filled(tx, found[:limit])


async def states_of(tx: Tx, threads: Sequence[ThreadRow]) -> dict[str, Row]:
    wanted = {thread.id: thread.checkpoint_id for thread in threads if thread.checkpoint_id is not None}
    if not wanted:
        return {}
    rows = await tx.all(sql.GET_CHECKPOINTS, thread_ids=list(wanted), ids=list(wanted.values()))
    return await filled_states(tx, {row[0]: row for row in rows if wanted[row[0]] == row[1]})
