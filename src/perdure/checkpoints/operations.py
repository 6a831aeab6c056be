"""Operations on the checkpoints of graphs: store, copy, remove.

Each operation first locks its threads in the order of their IDs, so that the bases of a new checkpoint are
not removed at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from perdure.checkpoints import model, sql
from perdure.checkpoints.model import KnownCheckpoint, Range, piece_key
from perdure.checkpoints.packs import PackedCheckpoint, read_pack, unpacked
from perdure.checkpoints.queries import Place, store_all_states, store_states
from perdure.checkpoints.records import GraphPut, Piece, PruneStrategy
from perdure.checkpoints.rows import (
    CheckpointThreadRow,
    EncodedChanges,
    ListItemsRow,
    PieceRow,
    StoredRow,
    decode_metadata,
    decode_ranges,
    decode_versions,
    first_writes,
    ranges_text,
)
from perdure.kernel.checks import check_text
from perdure.kernel.errors import Conflict
from perdure.kernel.storage.port import Tx

# Batch size: each thread of a query searches the index for the pieces of all.
THREADS_AT_ONCE = 16

# --- storing ----------------------------------------------------------------------------------------------


class _Log(msgspec.Struct):
    """Log of a list's items, and the position for new ones."""

    name: str
    end: int


class _List(NamedTuple):
    """Version of a list."""

    log: _Log
    ranges: list[Range]


Key = tuple[str, str, str]
"""Key of a piece: thread, namespace, channel and version."""


async def put(tx: Tx, changes: Sequence[EncodedChanges]) -> None:
    """Store checkpoints and writes. An existing key is replaced; a missing base is a Conflict."""
    puts = [put for change in changes for put in change.puts]
    checkpoints = {
        (row.thread_id, row.checkpoint_ns, row.id): row for change in changes for row in change.checkpoints
    }
    writes = first_writes(write for change in changes for write in change.writes)
    threads = {put.thread_id for put in puts} | {write.thread_id for write in writes}
    existing = await _lock(tx, threads)
    pieces, items = await _pieces(tx, puts)
    await tx.defer(
        sql.ADD_THREADS.of([CheckpointThreadRow(thread_id) for thread_id in sorted(threads - existing)]),
        sql.PUT_CHECKPOINTS.of(list(checkpoints.values())),
        sql.PUT_PIECES.of(pieces),
        sql.ADD_ITEMS.of(items),
        sql.PUT_WRITES.of(writes),
    )


async def _lock(tx: Tx, threads: Iterable[str]) -> set[str]:
    """Lock threads; return the existing ones."""
    wanted = sorted({model.check_thread(thread_id) for thread_id in threads})
    return set(await tx.all(sql.LOCK_THREADS, thread_ids=wanted))


async def _pieces(tx: Tx, puts: Sequence[GraphPut]) -> tuple[list[PieceRow], list[ListItemsRow]]:
    """Build the rows of new versions, and of their new items."""
    lists = await _bases(tx, puts)
    rows: dict[Key, PieceRow] = {}
    items: list[ListItemsRow] = []
    for put, piece in _new_pieces(puts):
        key = _key(put, piece.channel, piece.version)
        if piece.spans is not None:
            version = lists[key] = _append_version(tx, put, piece, lists)
            items += _new_items(put, piece, version.log)
            rows[key] = _piece_row(key, log=version.log.name, ranges=ranges_text(version.ranges))
        elif piece.value is not None:
            form, body = piece.value
            rows[key] = _piece_row(key, form=form, body=body)
    return list(rows.values()), items


def _piece_row(
    key: Key,
    *,
    log: str | None = None,
    ranges: str | None = None,
    form: str | None = None,
    body: bytes | None = None,
) -> PieceRow:
    thread_id, checkpoint_ns, piece = key
    return PieceRow(thread_id, checkpoint_ns, piece, log=log, ranges=ranges, form=form, body=body)


def _new_pieces(puts: Sequence[GraphPut]) -> Iterator[tuple[GraphPut, Piece]]:
    return ((put, piece) for put in puts for piece in put.pieces)


def _key(put: GraphPut, channel: str, version: str) -> Key:
    return put.thread_id, put.checkpoint_ns, piece_key(channel, version)


async def _bases(tx: Tx, puts: Sequence[GraphPut]) -> dict[Key, _List]:
    """Load the earlier versions that new versions use items of."""
    wanted = {_key(put, new.channel, new.base) for put, new in _new_pieces(puts) if new.base is not None}
    threads = sorted({thread_id for thread_id, _, _ in wanted})
    bases: dict[Key, _List] = {}
    logs: dict[tuple[str, str], _Log] = {}
    for start in range(0, len(threads), THREADS_AT_ONCE):
        chosen = set(threads[start : start + THREADS_AT_ONCE])
        keys = [(thread_id, *rest) for thread_id, *rest in wanted if thread_id in chosen]
        rows = await tx.all(
            sql.FIND_BASES,
            thread_ids=sorted(chosen),
            namespaces=sorted({namespace for _, namespace, _ in keys}),
            pieces=sorted({piece for _, _, piece in keys}),
        )
        for row in rows:
            shared = logs.setdefault((row.thread_id, row.log), _Log(row.log, row.stop or 0))
            bases[row.thread_id, row.checkpoint_ns, row.piece] = _List(shared, decode_ranges(row.ranges))
    return bases


def _append_version(tx: Tx, put: GraphPut, piece: Piece, lists: Mapping[Key, _List]) -> _List:
    """Return the log and the ranges of a new version."""
    spans = piece.spans or []
    if piece.base is None:
        return _List(_Log(tx.ids.hex(16), 0), model.laid_out(spans, [], 0))
    base = lists.get(_key(put, piece.channel, piece.base))
    if base is None:
        base_name = f"version {piece.base} of channel {piece.channel}"
        raise Conflict(f"thread {put.thread_id}: {base_name} does not exist, so nothing can build on it")
    return _List(base.log, model.laid_out(spans, base.ranges, base.log.end))


def _new_items(put: GraphPut, piece: Piece, log: _Log) -> list[ListItemsRow]:
    if piece.value is None or piece.count == 0:
        return []
    form, body = piece.value
    position = log.end
    log.end += piece.count
    return [ListItemsRow(put.thread_id, log.name, position=position, count=piece.count, form=form, body=body)]


async def stored_by(tx: Tx, wanted: Sequence[StoredRow]) -> dict[str, set[tuple[str, str]]]:
    """Return the checkpoints that their runs stored, by run: namespaces and IDs. Lock the threads, so that no
    checkpoint is removed before this transaction ends."""
    threads = sorted({row.thread_id for row in wanted})
    await _lock(tx, threads)
    rows = await tx.all(
        sql.STORED_BY,
        thread_ids=threads,
        run_ids=sorted({row.run_id for row in wanted}),
        namespaces=sorted({row.checkpoint_ns for row in wanted}),
        ids=sorted({row.id for row in wanted}),
    )
    stored: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for row in set(rows) & set(wanted):
        stored[row.run_id].add((row.checkpoint_ns, row.id))
    return stored


# --- unpacking --------------------------------------------------------------------------------------------


class Unpacked(NamedTuple):
    """Checkpoints that were packed with the checkpoint `id`."""

    thread_id: str
    id: str
    checkpoints: list[PackedCheckpoint]
    states: bytes | None


async def is_packed(tx: Tx, thread_ids: Sequence[str]) -> bool:
    """Return whether any checkpoint of these threads has no row of its own."""
    wanted = sorted({model.check_thread(thread_id) for thread_id in thread_ids})
    return await tx.one(sql.IS_PACKED, thread_ids=wanted) is not None


async def unpack(tx: Tx, thread_ids: Sequence[str], *, with_states: bool = False) -> list[Unpacked]:
    """Give all checkpoints of these threads their own rows.

    Packs with states stay until the states are unpacked; `with_states` means that the caller unpacks them.
    """
    existing = sorted(await _lock(tx, thread_ids))
    packed = await tx.all(sql.PACKED, thread_ids=existing) if existing else []
    if not packed:
        return []
    # Decoded in the transaction, because each pack is small and is decoded once.
    packs = [(row, read_pack(row)) for row in packed]
    rows = [unpacked(row, pack) for row, pack in packs]
    await tx.write(
        sql.ADD_CHECKPOINTS.of([row for pack_rows in rows for row in pack_rows.checkpoints]),
        sql.ADD_PIECES.of([row for pack_rows in rows for row in pack_rows.pieces]),
        sql.ADD_WRITES.of([row for pack_rows in rows for row in pack_rows.writes]),
    )
    await tx.execute(sql.CLEAR_ALL_PACKS if with_states else sql.CLEAR_PACKS, thread_ids=existing)
    return [
        Unpacked(row.thread_id, row.id, pack.checkpoints, pack.states or row.states) for row, pack in packs
    ]


# --- removing ---------------------------------------------------------------------------------------------


async def delete_threads(tx: Tx, thread_ids: Sequence[str]) -> None:
    """Remove everything that graphs stored in these threads."""
    existing = sorted(await _lock(tx, thread_ids)) if thread_ids else []
    if existing:
        await store_all_states(tx, existing)
        for statement in (
            sql.DROP_ALL_CHECKPOINTS,
            sql.DROP_ALL_PIECES,
            sql.DROP_ALL_ITEMS,
            sql.DROP_ALL_WRITES,
            sql.DROP_THREADS,
        ):
            await tx.execute(statement, thread_ids=existing)


async def delete_runs(tx: Tx, run_ids: Sequence[str]) -> list[str]:
    """Remove the checkpoints of these runs; return their threads. Later checkpoints stay readable."""
    runs = sorted({check_text(run_id, "run_id") for run_id in run_ids})
    threads = sorted({row.thread_id for row in await tx.all(sql.OF_RUNS, run_ids=runs)}) if runs else []
    if not threads:
        return []
    await _lock(tx, threads)
    gone: dict[Place, set[str]] = defaultdict(set)
    for row in await tx.all(sql.OF_RUNS, run_ids=runs):
        gone[row.thread_id, row.checkpoint_ns].add(row.id)
    await _drop(tx, gone)
    for thread_id in threads:
        await _sweep(tx, thread_id)
    return threads


async def prune(tx: Tx, thread_ids: Sequence[str], strategy: PruneStrategy) -> None:
    """Remove all checkpoints of threads, or all except the newest of each namespace and what it needs."""
    if model.check_strategy(strategy) == "delete":
        await delete_threads(tx, thread_ids)
        return
    for thread_id in sorted(await _lock(tx, thread_ids)) if thread_ids else []:
        await _keep_latest(tx, thread_id)


async def _keep_latest(tx: Tx, thread_id: str) -> None:
    # Packed checkpoints are older than the latest one.
    await tx.execute(sql.CLEAR_ALL_PACKS, thread_ids=[thread_id])
    stored: dict[str, dict[str, KnownCheckpoint]] = defaultdict(dict)
    for row in await tx.all(sql.OF_THREAD, thread_id=thread_id):
        stored[row.checkpoint_ns][row.id] = KnownCheckpoint(
            row.parent_id, decode_versions(row.versions), decode_metadata(row.metadata)
        )
    pieces: dict[str, set[str]] = defaultdict(set)
    for piece in await tx.all(sql.PIECES_OF_THREAD, thread_id=thread_id):
        pieces[piece.checkpoint_ns].add(piece.piece)
    kept = {ns: model.needed(max(by_id), by_id, pieces[ns]) for ns, by_id in stored.items()}
    places: dict[Place, set[str]] = {(thread_id, ns): by_id.keys() - kept[ns] for ns, by_id in stored.items()}
    for written in await tx.all(sql.PLACES_WRITTEN, thread_id=thread_id):
        if written.checkpoint_id not in kept.get(written.checkpoint_ns, ()):
            places.setdefault((thread_id, written.checkpoint_ns), set()).add(written.checkpoint_id)
    await _drop(tx, places)
    await _sweep(tx, thread_id)


async def _drop(tx: Tx, places: Mapping[Place, Iterable[str]]) -> None:
    """Remove checkpoints and the writes after them. Events that refer to them get their states first."""
    await store_states(tx, {place: set(ids) for place, ids in places.items()})
    for (thread_id, namespace), ids in sorted(places.items()):
        checkpoint_ids = sorted(ids)
        if checkpoint_ids:
            at = {"thread_id": thread_id, "checkpoint_ns": namespace, "ids": checkpoint_ids}
            await tx.execute(sql.DROP_CHECKPOINTS, **at)
            await tx.execute(sql.DROP_WRITES, **at)


async def _sweep(tx: Tx, thread_id: str) -> None:
    """Remove the pieces and items of a thread that no checkpoint needs."""
    await unpack(tx, [thread_id])
    rows = await tx.all(sql.VERSIONS_OF_THREAD, thread_id=thread_id)
    if not rows:
        await delete_threads(tx, [thread_id])
        return
    used: set[tuple[str, str]] = set()
    for row in rows:
        used |= {(row.checkpoint_ns, piece_key(*item)) for item in decode_versions(row.versions).items()}
    left: dict[str, list[str]] = defaultdict(list)
    ranges: dict[str, list[Range]] = defaultdict(list)
    for piece in await tx.all(sql.PIECES_OF_THREAD, thread_id=thread_id):
        if (piece.checkpoint_ns, piece.piece) not in used:
            left[piece.checkpoint_ns].append(piece.piece)
        elif piece.log is not None and piece.ranges is not None:
            ranges[piece.log] += decode_ranges(piece.ranges)
    for namespace, pieces in sorted(left.items()):
        await tx.execute(sql.DROP_PIECES, thread_id=thread_id, checkpoint_ns=namespace, pieces=pieces)
    await _sweep_items(tx, thread_id, ranges)


async def _sweep_items(tx: Tx, thread_id: str, ranges: Mapping[str, list[Range]]) -> None:
    segments: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for item in await tx.all(sql.ITEMS_OF_THREAD, thread_id=thread_id):
        segments[item.log].append((item.position, item.count))
    for log, log_segments in sorted(segments.items()):
        positions = model.unneeded(log_segments, ranges.get(log, ()))
        if positions:
            await tx.execute(sql.DROP_ITEMS, thread_id=thread_id, log=log, positions=positions)


# --- copying ----------------------------------------------------------------------------------------------


async def copy_thread(tx: Tx, source: str, target: str) -> None:
    """Copy all checkpoints of a thread to another thread, which must have none."""
    existing = await _lock(tx, [source, target])
    if target in existing:
        raise Conflict(f"Thread {target} has checkpoints already")
    if source not in existing:
        return
    await unpack(tx, [source])
    await tx.write(sql.ADD_THREADS.of([CheckpointThreadRow(target)]))
    for statement in (sql.COPY_CHECKPOINTS, sql.COPY_PIECES, sql.COPY_ITEMS, sql.COPY_WRITES):
        await tx.execute(statement, source=source, target=target)
