"""Operations on the checkpoints of graphs: keep, read, copy, remove.

Whoever keeps, copies or removes anything has locked the threads concerned, in the order of their ids: so
nothing that a new checkpoint builds on goes away under it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.graphs import model, sql
from perdure.graphs.model import Known, Range, piece_key
from perdure.graphs.records import GraphChanges, GraphPut, GraphWrite, Piece, PruneStrategy
from perdure.kernel.codec import check_text, decode_json, encode_json
from perdure.kernel.errors import Conflict
from perdure.kernel.storage.port import Tx

Place = tuple[str, str]
"""A thread and a namespace of its checkpoints."""

# The bases of so many threads are asked for at once: each asks the index for the pieces of all.
THREADS_AT_ONCE = 16

_ranges = msgspec.json.Decoder(list[Range])


def ranges_of(text: str) -> list[Range]:
    """The ranges of a version, as they are kept."""
    return _ranges.decode(text)


# --- keeping ----------------------------------------------------------------------------------------------


class _Log(msgspec.Struct):
    """The items of a list, and where what is new goes."""

    name: str
    end: int


class _List(NamedTuple):
    """A version of a list."""

    log: _Log
    ranges: list[Range]


Key = tuple[str, str, str]
"""A piece: its thread, its namespace, and what it is found by there."""


async def put(tx: Tx, changes: GraphChanges) -> None:
    """Keep checkpoints and writes. What is there already is replaced; a base that is gone is a Conflict."""
    for each in changes.puts:
        model.check_put(each)
    for write in changes.writes:
        model.check_write(write)
    threads = {put.thread_id for put in changes.puts} | {write.thread_id for write in changes.writes}
    known = await _lock(tx, threads)
    pieces, items = await _pieces(tx, changes.puts)
    await tx.defer(
        (sql.ADD_THREADS, [(tx.ns, thread_id) for thread_id in sorted(threads - known)]),
        (sql.PUT_CHECKPOINTS, _checkpoint_rows(tx, changes.puts)),
        (sql.PUT_PIECES, pieces),
        (sql.ADD_ITEMS, items),
        (sql.PUT_WRITES, _write_rows(tx, changes.writes)),
    )


async def _lock(tx: Tx, threads: Iterable[str]) -> set[str]:
    """Lock threads, and say which of them have something here."""
    wanted = sorted({model.check_thread(thread_id) for thread_id in threads})
    return {row[0] for row in await tx.all(sql.LOCK_THREADS, thread_ids=wanted)}


def _checkpoint_rows(tx: Tx, puts: Sequence[GraphPut]) -> list[tuple[Any, ...]]:
    rows: dict[tuple[str, str, str], tuple[Any, ...]] = {}
    for put in puts:
        key = (put.thread_id, put.checkpoint_ns, put.checkpoint_id)
        versions = encode_json(put.versions, what="versions")
        metadata = encode_json(put.metadata, what="metadata", nan="keep")
        rows[key] = (tx.ns, *key, put.parent_id, put.run_id, versions, metadata, *put.checkpoint)
    return list(rows.values())


def _write_rows(tx: Tx, writes: Sequence[GraphWrite]) -> list[tuple[Any, ...]]:
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for each in writes:
        key = (each.thread_id, each.checkpoint_ns, each.checkpoint_id, each.task_id, each.idx)
        if each.idx < 0 or key not in rows:
            rows[key] = (tx.ns, *key, each.task_path, each.channel, *each.value)
    return list(rows.values())


async def _pieces(tx: Tx, puts: Sequence[GraphPut]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows of new versions, and of the items that are new with them."""
    lists = await _bases(tx, puts)
    rows: dict[Key, tuple[Any, ...]] = {}
    items: list[tuple[Any, ...]] = []
    for put, piece in _each(puts):
        key = _key(put, piece.channel, piece.version)
        if piece.spans is not None:
            made = lists[key] = _grown(tx, put, piece, lists)
            items += _new_items(tx, put, piece, made.log)
            rows[key] = (tx.ns, *key, made.log.name, encode_json(made.ranges), None, None)
        elif piece.value is not None:
            rows[key] = (tx.ns, *key, None, None, *piece.value)
    return list(rows.values()), items


def _each(puts: Sequence[GraphPut]) -> Iterator[tuple[GraphPut, Piece]]:
    return ((put, piece) for put in puts for piece in put.pieces)


def _key(put: GraphPut, channel: str, version: str) -> Key:
    return put.thread_id, put.checkpoint_ns, piece_key(channel, version)


async def _bases(tx: Tx, puts: Sequence[GraphPut]) -> dict[Key, _List]:
    """The earlier versions whose items are used again."""
    wanted = {_key(put, each.channel, each.base) for put, each in _each(puts) if each.base is not None}
    threads = sorted({thread_id for thread_id, _, _ in wanted})
    found: dict[Key, _List] = {}
    logs: dict[tuple[str, str], _Log] = {}
    for start in range(0, len(threads), THREADS_AT_ONCE):
        chosen = set(threads[start : start + THREADS_AT_ONCE])
        keys = [key for key in wanted if key[0] in chosen]
        rows = await tx.all(
            sql.FIND_BASES,
            thread_ids=sorted(chosen),
            namespaces=sorted({namespace for _, namespace, _ in keys}),
            pieces=sorted({piece for _, _, piece in keys}),
        )
        for thread_id, namespace, piece, log, ranges, end in rows:
            shared = logs.setdefault((thread_id, log), _Log(log, end or 0))
            found[thread_id, namespace, piece] = _List(shared, ranges_of(ranges))
    return found


def _grown(tx: Tx, put: GraphPut, piece: Piece, lists: Mapping[Key, _List]) -> _List:
    """Where the items of a new version lie."""
    spans = piece.spans or []
    if piece.base is None:
        return _List(_Log(tx.ids.hex(16), 0), model.laid_out(spans, [], 0))
    base = lists.get(_key(put, piece.channel, piece.base))
    if base is None:
        what = f"the version {piece.base} of channel {piece.channel}"
        raise Conflict(f"thread {put.thread_id}: {what} is not there to build on")
    return _List(base.log, model.laid_out(spans, base.ranges, base.log.end))


def _new_items(tx: Tx, put: GraphPut, piece: Piece, log: _Log) -> list[tuple[Any, ...]]:
    if piece.value is None or piece.count == 0:
        return []
    position = log.end
    log.end += piece.count
    return [(tx.ns, put.thread_id, log.name, position, piece.count, *piece.value)]


# --- removing ---------------------------------------------------------------------------------------------


async def delete_threads(tx: Tx, thread_ids: Sequence[str]) -> None:
    """Remove everything that graphs have kept in these threads."""
    known = sorted(await _lock(tx, thread_ids)) if thread_ids else []
    if known:
        for each in sql.DROP_THREADS:
            await tx.execute(each, thread_ids=known)


async def delete_runs(tx: Tx, run_ids: Sequence[str]) -> list[str]:
    """Remove the checkpoints of these runs; gives the threads they were in. Later ones stay readable."""
    runs = sorted({check_text(run_id, "run_id") for run_id in run_ids})
    threads = sorted({row[0] for row in await tx.all(sql.OF_RUNS, run_ids=runs)}) if runs else []
    if not threads:
        return []
    await _lock(tx, threads)
    gone: dict[Place, set[str]] = defaultdict(set)
    for thread_id, namespace, checkpoint_id in await tx.all(sql.OF_RUNS, run_ids=runs):
        gone[thread_id, namespace].add(checkpoint_id)
    await _drop(tx, gone)
    for thread_id in threads:
        await _sweep(tx, thread_id)
    return threads


async def prune(tx: Tx, thread_ids: Sequence[str], strategy: PruneStrategy) -> None:
    """Remove all of these threads, or all but the newest checkpoint of each namespace and what it needs."""
    if model.check_strategy(strategy) == "delete":
        await delete_threads(tx, thread_ids)
        return
    for thread_id in sorted(await _lock(tx, thread_ids)) if thread_ids else []:
        await _keep_latest(tx, thread_id)


async def _keep_latest(tx: Tx, thread_id: str) -> None:
    known: dict[str, dict[str, Known]] = defaultdict(dict)
    for namespace, checkpoint_id, parent_id, versions, metadata in await tx.all(
        sql.OF_THREAD, thread_id=thread_id
    ):
        known[namespace][checkpoint_id] = Known(parent_id, decode_json(versions), decode_json(metadata))
    pieces: dict[str, set[str]] = defaultdict(set)
    for namespace, piece, _, _ in await tx.all(sql.PIECES_OF_THREAD, thread_id=thread_id):
        pieces[namespace].add(piece)
    kept = {ns: model.needed(max(found), found, pieces[ns]) for ns, found in known.items()}
    places: dict[Place, set[str]] = {(thread_id, ns): found.keys() - kept[ns] for ns, found in known.items()}
    for namespace, checkpoint_id in await tx.all(sql.PLACES_WRITTEN, thread_id=thread_id):
        if checkpoint_id not in kept.get(namespace, ()):
            places.setdefault((thread_id, namespace), set()).add(checkpoint_id)
    await _drop(tx, places)
    await _sweep(tx, thread_id)


async def _drop(tx: Tx, places: Mapping[Place, Iterable[str]]) -> None:
    """Remove checkpoints with what was written after them."""
    for (thread_id, namespace), found in sorted(places.items()):
        checkpoint_ids = sorted(found)
        if checkpoint_ids:
            at = {"thread_id": thread_id, "checkpoint_ns": namespace, "ids": checkpoint_ids}
            await tx.execute(sql.DROP_CHECKPOINTS, **at)
            await tx.execute(sql.DROP_WRITES, **at)


async def _sweep(tx: Tx, thread_id: str) -> None:
    """Remove the pieces and items of a thread that no checkpoint needs any more."""
    rows = await tx.all(sql.VERSIONS_OF_THREAD, thread_id=thread_id)
    if not rows:
        await delete_threads(tx, [thread_id])
        return
    used: set[tuple[str, str]] = set()
    for namespace, versions in rows:
        used |= {(namespace, piece_key(*each)) for each in decode_json(versions).items()}
    left: dict[str, list[str]] = defaultdict(list)
    ranges: dict[str, list[Range]] = defaultdict(list)
    for namespace, piece, log, text in await tx.all(sql.PIECES_OF_THREAD, thread_id=thread_id):
        if (namespace, piece) not in used:
            left[namespace].append(piece)
        elif log is not None:
            ranges[log] += ranges_of(text)
    for namespace, pieces in sorted(left.items()):
        await tx.execute(sql.DROP_PIECES, thread_id=thread_id, checkpoint_ns=namespace, pieces=pieces)
    await _sweep_items(tx, thread_id, ranges)


async def _sweep_items(tx: Tx, thread_id: str, ranges: Mapping[str, list[Range]]) -> None:
    segments: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for log, position, count in await tx.all(sql.ITEMS_OF_THREAD, thread_id=thread_id):
        segments[log].append((position, count))
    for log, found in sorted(segments.items()):
        positions = model.unneeded(found, ranges.get(log, ()))
        if positions:
            await tx.execute(sql.DROP_ITEMS, thread_id=thread_id, log=log, positions=positions)


# --- copying ----------------------------------------------------------------------------------------------


async def copy_thread(tx: Tx, source: str, target: str) -> None:
    """Give another thread, which has no checkpoints yet, all that graphs have kept in this one."""
    known = await _lock(tx, [source, target])
    if target in known:
        raise Conflict(f"Thread {target} has checkpoints already")
    if source not in known:
        return
    await tx.write((sql.ADD_THREADS, [(tx.ns, target)]))
    for each in sql.COPY:
        await tx.execute(each, source=source, target=target)
