"""Queries of graph checkpoints, of the values of their channels, and of states for events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.checkpoints import sql
from perdure.checkpoints.model import GAP, LogSegment, Range, build_slices, check_query, covered, piece_key
from perdure.checkpoints.records import (
    CheckpointQuery,
    GraphDelta,
    GraphDeltaQuery,
    GraphValue,
    GraphWrite,
    Typed,
    Version,
)
from perdure.checkpoints.rows import (
    CheckpointRow,
    CheckpointWithValues,
    decode_ranges,
    decode_versions,
    row_to_graph_write,
)
from perdure.checkpoints.view import decode_keys, state_text, value_text
from perdure.kernel.checks import MAX_ROWS
from perdure.kernel.errors import InvalidInput, NotSupported
from perdure.kernel.storage.filters import given, where
from perdure.kernel.storage.port import Tx
from perdure.streams.model import Reference
from perdure.streams.operations import store_bodies

LAST = "\U0010ffff"
"""Text that sorts after every ID."""
PAGE = 100
"""Batch size of checkpoints that are filtered in Python."""
STEPS = 64
"""Batch size of ancestors."""


async def find(tx: Tx, query: CheckpointQuery) -> list[CheckpointWithValues]:
    """Return the matching checkpoints, the newest first, each with its values and the writes after it."""
    check_query(query)
    rows = await _chosen(tx, query)
    places: dict[tuple[str, str], list[CheckpointRow]] = defaultdict(list)
    for row in rows:
        places[row.thread_id, row.checkpoint_ns].append(row)
    results: dict[tuple[str, str, str], CheckpointWithValues] = {}
    for (thread_id, namespace), group in places.items():
        for checkpoint in await _with_values(tx, thread_id, namespace, group):
            results[thread_id, namespace, checkpoint.row.id] = checkpoint
    return [results[row.thread_id, row.checkpoint_ns, row.id] for row in rows]


async def _chosen(tx: Tx, query: CheckpointQuery) -> list[CheckpointRow]:
    limit = MAX_ROWS if query.limit is None else max(query.limit, 0)
    conditions = given(
        ("thread_id", "exact", query.thread_id),
        ("checkpoint_ns", "exact", query.checkpoint_ns),
        ("checkpoint_id", "exact", query.checkpoint_id),
    )
    clause = where(sql.FIELDS, conditions, "and")
    size = limit if not query.filter else PAGE
    page, values = sql.LIST_CHECKPOINTS.page(clause, sql.NEWEST_FIRST, size, 0)
    matching: list[CheckpointRow] = []
    offset = 0
    while len(matching) < limit:
        rows = await tx.all(page, before=query.before or LAST, **{**values, "offset": offset})
        matching += [row for row in rows if row.has_metadata(query.filter)]
        if len(rows) < size or not query.filter:
            break
        offset += size
    return matching[:limit]


async def _with_values(
    tx: Tx, thread_id: str, namespace: str, rows: Sequence[CheckpointRow]
) -> list[CheckpointWithValues]:
    versions = [decode_versions(row.versions) for row in rows]
    wanted = [item for channels in versions for item in channels.items()]
    values = await read_values(tx, thread_id, namespace, wanted)
    writes = await _writes(tx, thread_id, namespace, [row.id for row in rows])
    return [
        CheckpointWithValues(
            row,
            versions=channels,
            values=[values[key] for key in map(_key, channels.items()) if key in values],
            writes=writes.get(row.id, []),
        )
        for row, channels in zip(rows, versions, strict=True)
    ]


def _key(item: tuple[str, Version]) -> str:
    return piece_key(*item)


async def read_values(
    tx: Tx, thread_id: str, namespace: str, wanted: Sequence[tuple[str, Version]]
) -> dict[str, GraphValue]:
    """Return the values of versions of channels, by the keys of their pieces. Empty channels are left out."""
    names = {_key(item): item for item in wanted}
    if not names:
        return {}
    at = {"thread_id": thread_id, "checkpoint_ns": namespace}
    rows = await tx.all(sql.READ_PIECES, pieces=sorted(names), **at)
    lists = {row.piece: _List(row.log, decode_ranges(row.ranges)) for row in rows if row.log and row.ranges}
    segments = await _segments(tx, thread_id, list(lists.values()))
    values: dict[str, GraphValue] = {}
    for row in rows:
        channel, version = names[row.piece]
        value, parts, spans = None, None, 0
        if row.piece in lists:
            log, ranges = lists[row.piece]
            parts, spans = build_slices(ranges, segments.get(log, [])), len(ranges)
        elif row.form is not None and row.body is not None:
            value = (row.form, row.body)
        values[row.piece] = GraphValue(
            channel=channel, version=str(version), value=value, parts=parts, spans=spans
        )
    return values


class _List(NamedTuple):
    """Log and ranges of a list."""

    log: str
    ranges: list[Range]


async def _segments(tx: Tx, thread_id: str, lists: Sequence[_List]) -> dict[str, list[LogSegment]]:
    """Return the items of these ranges by log, in order."""
    wanted: dict[str, list[Range]] = defaultdict(list)
    for log, ranges in lists:
        wanted[log] += ranges
    segments: dict[str, list[LogSegment]] = {}
    for log, ranges in wanted.items():
        rows: dict[int, LogSegment] = {}
        for start, stop in covered(ranges, GAP):
            for row in await tx.all(sql.READ_ITEMS, thread_id=thread_id, log=log, start=start, stop=stop):
                rows[row.position] = LogSegment(row.position, row.position + row.count, (row.form, row.body))
        segments[log] = [rows[position] for position in sorted(rows)]
    return segments


async def _writes(
    tx: Tx, thread_id: str, namespace: str, checkpoint_ids: Sequence[str]
) -> dict[str, list[GraphWrite]]:
    """Return the writes after checkpoints, by checkpoint ID, in the order in which they are applied."""
    at: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": namespace}
    writes: dict[str, list[GraphWrite]] = defaultdict(list)
    for row in await tx.all(sql.READ_WRITES, ids=sorted(set(checkpoint_ids)), **at):
        writes[row.checkpoint_id].append(row_to_graph_write(row))
    return writes


# --- channels that are stored as changes ------------------------------------------------------------------


async def delta(tx: Tx, query: GraphDeltaQuery) -> list[GraphDelta]:
    """Return for each channel its nearest value among the ancestors, and all writes since then."""
    check_query(query)
    at = {"thread_id": query.thread_id, "checkpoint_ns": query.checkpoint_ns}
    start = query.checkpoint_id or await tx.one(sql.LATEST_ID, **at)
    ancestry = _Ancestry(query.channels)
    place, first = start, True
    while place is not None and ancestry.open:
        rows = await tx.all(sql.ANCESTORS, id=place, depth=STEPS, **at)
        place = rows[-1].parent_id if rows else None
        # Writes at the checkpoint itself belong to the step after it.
        steps = [(row.id, decode_versions(row.versions)) for row in (rows[1:] if first else rows)]
        first = False
        await _walk(tx, query, ancestry, steps)
    return [ancestry.of(channel) for channel in query.channels]


class _Ancestry:
    """Values and writes of channels, collected from a checkpoint back to its first ancestor."""

    def __init__(self, channels: Sequence[str]) -> None:
        self.open = set(channels)
        self.seeds: dict[str, GraphValue] = {}
        self.writes: dict[str, list[GraphWrite]] = {channel: [] for channel in channels}

    def take(self, writes: Sequence[GraphWrite]) -> None:
        """Add the writes of the next ancestor, from the last to the first."""
        for write in reversed(writes):
            if write.channel in self.open:
                self.writes[write.channel].append(write)

    def close(self, value: GraphValue) -> None:
        self.seeds[value.channel] = value
        self.open.discard(value.channel)

    def of(self, channel: str) -> GraphDelta:
        return GraphDelta(
            channel=channel, seed=self.seeds.get(channel), writes=list(reversed(self.writes[channel]))
        )


async def _walk(
    tx: Tx, query: GraphDeltaQuery, ancestry: _Ancestry, steps: Sequence[tuple[str, Mapping[str, Version]]]
) -> None:
    place = (query.thread_id, query.checkpoint_ns)
    wanted = [
        (channel, versions[channel]) for _, versions in steps for channel in ancestry.open & versions.keys()
    ]
    values = await read_values(tx, *place, wanted)
    writes = await _writes(tx, *place, [checkpoint_id for checkpoint_id, _ in steps])
    for checkpoint_id, versions in steps:
        ancestry.take(writes.get(checkpoint_id, []))
        for channel in ancestry.open & versions.keys():
            value = values.get(piece_key(channel, versions[channel]))
            if value is not None:
                ancestry.close(value)


# --- states for events ------------------------------------------------------------------------------------


Place = tuple[str, str]
"""Thread and checkpoint namespace."""


async def resolve(tx: Tx, references: Collection[Reference]) -> dict[Reference, str]:
    """Return the states that references name, as JSON."""
    places: dict[Place, list[Reference]] = defaultdict(list)
    for reference in references:
        if reference.keys is not None:
            places[reference.thread_id, reference.checkpoint_ns or ""].append(reference)
    states: dict[Reference, str] = {}
    for (thread_id, namespace), group in places.items():
        states |= await _states(tx, thread_id, namespace, group)
    return states


async def _states(
    tx: Tx, thread_id: str, namespace: str, references: Collection[Reference]
) -> dict[Reference, str]:
    ids = sorted({reference.checkpoint_id for reference in references})
    at = {"thread_id": thread_id, "checkpoint_ns": namespace}
    rows = await tx.all(sql.VERSIONS_OF, ids=ids, **at)
    versions = {row.id: decode_versions(row.versions) for row in rows}
    shown = [
        (reference, decode_keys(reference.keys), versions[reference.checkpoint_id])
        for reference in references
        if reference.keys is not None and reference.checkpoint_id in versions
    ]
    wanted = {(key, named[key]) for _, keys, named in shown for key in _listed(keys) if key in named}
    texts = await _texts(tx, thread_id, namespace, wanted)
    states: dict[Reference, str] = {}
    for reference, keys, named in shown:
        pieces = {key: piece_key(key, named[key]) for key in _listed(keys) if key in named}
        state = state_text(keys, {key: texts[piece] for key, piece in pieces.items() if piece in texts})
        if state is not None:
            states[reference] = state
    return states


def _listed(keys: list[str] | str) -> list[str]:
    return [keys] if isinstance(keys, str) else keys


async def _texts(
    tx: Tx, thread_id: str, namespace: str, wanted: Iterable[tuple[str, Version]]
) -> dict[str, str]:
    """Return the JSON texts of versions of channels, by the keys of their pieces."""
    item_texts: dict[Typed, list[str]] = {}
    texts: dict[str, str] = {}
    for piece, value in (await read_values(tx, thread_id, namespace, list(wanted))).items():
        text = _text(value, item_texts)
        if text is not None:
            texts[piece] = text
    return texts


def _text(value: GraphValue, item_texts: dict[Typed, list[str]]) -> str | None:
    """Return the JSON text of a value; None if it has none, since a worker may refer to any value."""
    try:
        return value_text(value, item_texts)
    except (InvalidInput, NotSupported):
        return None


async def store_states(tx: Tx, removed: Mapping[Place, Collection[str]]) -> None:
    """Store the states of events that refer to these checkpoints, before the checkpoints are removed."""
    for thread_id in sorted({thread_id for thread_id, _ in removed}):

        def is_removed(reference: Reference, thread_id: str = thread_id) -> bool:
            place = (thread_id, reference.checkpoint_ns or "")
            return reference.keys is not None and reference.checkpoint_id in removed.get(place, ())

        await store_bodies(tx, thread_id, is_removed, resolve)


async def store_all_states(tx: Tx, thread_ids: Iterable[str]) -> None:
    """Store the states of events that refer to any checkpoint of these threads."""
    for thread_id in sorted(thread_ids):
        await store_bodies(tx, thread_id, lambda reference: reference.keys is not None, resolve)
