"""Reading the checkpoints of graphs, with the values of their channels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.graphs import sql
from perdure.graphs.model import (
    GAP,
    Range,
    Segment,
    check_query,
    covered,
    parts_of,
    piece_key,
)
from perdure.graphs.operations import ranges_of
from perdure.graphs.records import (
    GraphDelta,
    GraphDeltaQuery,
    GraphQuery,
    GraphTuple,
    GraphValue,
    GraphWrite,
    Typed,
    Version,
)
from perdure.kernel.codec import decode_json
from perdure.kernel.match import has
from perdure.kernel.storage.filters import MAX_ROWS, given, where
from perdure.kernel.storage.port import Row, Tx

LAST = "\U0010ffff"
"""What comes after every id."""
PAGE = 100
"""So many checkpoints are read at once where they have to be looked at one by one."""
STEPS = 64
"""So many ancestors are read at once."""


async def find(tx: Tx, query: GraphQuery) -> list[GraphTuple]:
    """The checkpoints that are meant, the newest first, each with its values and the writes after it."""
    check_query(query)
    rows = await _chosen(tx, query)
    places: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        places[row[0], row[1]].append(row)
    found: dict[tuple[str, str, str], GraphTuple] = {}
    for (thread_id, namespace), group in places.items():
        for each in await _tuples(tx, thread_id, namespace, group):
            found[thread_id, namespace, each.checkpoint_id] = each
    return [found[row[0], row[1], row[2]] for row in rows]


async def _chosen(tx: Tx, query: GraphQuery) -> list[Row]:
    limit = MAX_ROWS if query.limit is None else max(query.limit, 0)
    conditions = given(
        ("thread_id", "exact", query.thread_id),
        ("checkpoint_ns", "exact", query.checkpoint_ns),
        ("checkpoint_id", "exact", query.checkpoint_id),
    )
    clause = where(sql.FIELDS, conditions, "and")
    size = limit if not query.filter else PAGE
    page, values = sql.LIST_CHECKPOINTS.page(clause, sql.NEWEST_FIRST, size, 0)
    found: list[Row] = []
    offset = 0
    while len(found) < limit:
        rows = await tx.all(page, before=query.before or LAST, **{**values, "offset": offset})
        found += [row for row in rows if not query.filter or has(decode_json(row[6]), query.filter)]
        if len(rows) < size or not query.filter:
            break
        offset += size
    return found[:limit]


async def _tuples(tx: Tx, thread_id: str, namespace: str, rows: Sequence[Row]) -> list[GraphTuple]:
    versions = [decode_json(row[5]) for row in rows]
    wanted = [each for found in versions for each in found.items()]
    values = await _values(tx, thread_id, namespace, wanted)
    writes = await _writes(tx, thread_id, namespace, [row[2] for row in rows])
    return [
        GraphTuple(
            thread_id=thread_id,
            checkpoint_ns=namespace,
            checkpoint_id=row[2],
            parent_id=row[3],
            run_id=row[4],
            versions=found,
            metadata=decode_json(row[6]),
            checkpoint=(row[7], row[8]),
            values=[values[key] for key in map(_key, found.items()) if key in values],
            writes=writes.get(row[2], []),
        )
        for row, found in zip(rows, versions, strict=True)
    ]


def _key(item: tuple[str, Version]) -> str:
    return piece_key(*item)


async def _values(
    tx: Tx, thread_id: str, namespace: str, wanted: Sequence[tuple[str, Version]]
) -> dict[str, GraphValue]:
    """The values of versions of channels, by the keys of their pieces; what is empty is not among them."""
    names = {_key(each): each for each in wanted}
    if not names:
        return {}
    at = {"thread_id": thread_id, "checkpoint_ns": namespace}
    rows = await tx.all(sql.READ_PIECES, pieces=sorted(names), **at)
    lists = {row[0]: (row[1], ranges_of(row[2])) for row in rows if row[1] is not None}
    segments = await _segments(tx, thread_id, list(lists.values()))
    values: dict[str, GraphValue] = {}
    for key, log, _, form, body in rows:
        channel, version = names[key][0], str(names[key][1])
        if log is None:
            values[key] = GraphValue(channel=channel, version=version, value=(form, body))
        else:
            ranges = lists[key][1]
            parts = parts_of(ranges, segments.get(log, []))
            values[key] = GraphValue(channel=channel, version=version, parts=parts, spans=len(ranges))
    return values


async def _segments(
    tx: Tx, thread_id: str, lists: Sequence[tuple[str, list[Range]]]
) -> dict[str, list[Segment]]:
    """The items of these ranges of logs, by log, in their order."""
    wanted: dict[str, list[Range]] = defaultdict(list)
    for log, ranges in lists:
        wanted[log] += ranges
    found: dict[str, list[Segment]] = {}
    for log, ranges in wanted.items():
        rows: dict[int, Segment] = {}
        for start, stop in covered(ranges, GAP):
            for position, count, form, body in await tx.all(
                sql.READ_ITEMS, thread_id=thread_id, log=log, start=start, stop=stop
            ):
                rows[position] = Segment(position, position + count, (form, body))
        found[log] = [rows[position] for position in sorted(rows)]
    return found


async def _writes(
    tx: Tx, thread_id: str, namespace: str, checkpoint_ids: Sequence[str]
) -> dict[str, list[GraphWrite]]:
    """What was written after checkpoints, by their ids, in the order in which it is applied."""
    at: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": namespace}
    found: dict[str, list[GraphWrite]] = defaultdict(list)
    for row in await tx.all(sql.READ_WRITES, ids=sorted(set(checkpoint_ids)), **at):
        checkpoint_id, task_id, task_path, idx, channel, form, body = row
        value: Typed = (form, body)
        found[checkpoint_id].append(
            GraphWrite(
                checkpoint_id=checkpoint_id,
                task_id=task_id,
                task_path=task_path,
                idx=idx,
                channel=channel,
                value=value,
                **at,
            )
        )
    return found


# --- channels that are kept as changes --------------------------------------------------------------------


async def delta(tx: Tx, query: GraphDeltaQuery) -> list[GraphDelta]:
    """For each channel its nearest value among the ancestors, and what was written from there on."""
    check_query(query)
    at = {"thread_id": query.thread_id, "checkpoint_ns": query.checkpoint_ns}
    start = query.checkpoint_id or await _latest(tx, at)
    line = _Line(query.channels)
    place, first = start, True
    while place is not None and line.open:
        rows = list(await tx.all(sql.ANCESTORS, id=place, depth=STEPS, **at))
        place = rows[-1][1] if rows else None
        # What is written at the checkpoint itself belongs to the step after it.
        steps = [(row[0], decode_json(row[2])) for row in (rows[1:] if first else rows)]
        first = False
        await _walk(tx, query, line, steps)
    return [line.of(channel) for channel in query.channels]


async def _latest(tx: Tx, at: Mapping[str, str]) -> str | None:
    row = await tx.one(sql.LATEST_ID, **at)
    return None if row is None else str(row[0])


class _Line:
    """What is known of the channels, on the way from a checkpoint to its first ancestor."""

    def __init__(self, channels: Sequence[str]) -> None:
        self.open = set(channels)
        self.seeds: dict[str, GraphValue] = {}
        self.writes: dict[str, list[GraphWrite]] = {channel: [] for channel in channels}

    def take(self, writes: Sequence[GraphWrite]) -> None:
        """The writes of the next ancestor, from the last to the first."""
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
    tx: Tx, query: GraphDeltaQuery, line: _Line, steps: Sequence[tuple[str, Mapping[str, Version]]]
) -> None:
    place = (query.thread_id, query.checkpoint_ns)
    wanted = [
        (channel, versions[channel]) for _, versions in steps for channel in line.open & versions.keys()
    ]
    values = await _values(tx, *place, wanted)
    writes = await _writes(tx, *place, [checkpoint_id for checkpoint_id, _ in steps])
    for checkpoint_id, versions in steps:
        line.take(writes.get(checkpoint_id, []))
        for channel in line.open & versions.keys():
            value = values.get(piece_key(channel, versions[channel]))
            if value is not None:
                line.close(value)
