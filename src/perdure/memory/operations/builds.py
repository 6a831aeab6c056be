"""Operations of builds: due nodes, their builders and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.kernel import changes
from perdure.kernel.storage.port import Tx
from perdure.memory import sql
from perdure.memory.calendar import SEGMENT
from perdure.memory.model import INDEX_CONSUMER, MemoryEventRow, TextRow
from perdure.memory.nodes import (
    BUILDING,
    BuildProgressRow,
    ChildNodeRow,
    ChildVersion,
    DueNodeRow,
    GripRow,
    NodeVersionRow,
    TocNodeRow,
    built,
    failed,
    is_taken,
    made_of_before,
    started,
    versions_digest,
)
from perdure.memory.operations.index import put_texts
from perdure.memory.segments import GAP_MS, EventSize, overlap
from perdure.outbox.operations import NewEffect, put

KIND = "memory_node"
DUE_ROWS = 100
OVERLAP_EVENTS = 50
SEGMENT_EVENTS = 4000
"""More events than a segment can have, because each counts as at least one token."""
READ_CHARACTERS = 4000


class DueNodeCursor(NamedTuple):
    """A position among the due nodes."""

    end_ms: int = -(2**62)
    ns: int = 0
    id: str = ""


async def due(tx: Tx, level: int, age: int | None, rest: int, after: DueNodeCursor) -> list[DueNodeRow]:
    """Return the next stale nodes of a level in the order of their ends, in one namespace or in all.

    Their period ended `age` microseconds ago, and they have not changed for `rest`.
    """
    return await tx.all(
        sql.DUE if tx.ns is None else sql.DUE_IN,
        level=level,
        ended=2**62 if age is None else (tx.wall - age) // 1000,
        before=tx.now - rest,
        after_ms=after.end_ms,
        after_ns=after.ns,
        after_id=after.id,
        limit=DUE_ROWS,
    )


async def until_due(tx: Tx, level: int, rest: int) -> int | None:
    """Return the microseconds until the next stale node of a level can be built; None if there is none.

    A node can be built when it has not changed for `rest` microseconds, or when a failed build is due again.
    """
    due_at = await tx.one(sql.FIRST_DUE, level=level, rest=rest)
    return None if due_at is None else max(0, due_at - tx.now)


async def start(tx: Tx, node_id: str, builder: str, seconds: int) -> TocNodeRow | None:
    """Start the build of a stale node with a lease; None if it is not stale or is being built."""
    (row,) = await tx.all(sql.LOCK_NODES, ids=[node_id]) or (None,)
    if row is None or not row.stale or is_taken(row, builder, tx.now):
        return None
    row = started(row, builder, tx.now + seconds)
    await _save(tx, row)
    return row


async def _save(tx: Tx, row: TocNodeRow) -> None:
    """Update a node whose status has changed."""
    await tx.update_many(sql.SAVE_NODES, [row])
    changes.tell(tx, KIND, [(row.id, row.status)])


async def refresh(tx: Tx, node_id: str) -> bool:
    """Return whether a stale node has changed children; otherwise clear its `stale` mark."""
    (row,) = await tx.all(sql.LOCK_NODES, ids=[node_id]) or (None,)
    if row is None or not row.stale:
        return False
    children = await tx.all(sql.CHILD_VERSIONS, parent=node_id)
    if children and versions_digest(children) != row.built_from:
        return True
    await tx.update_many(sql.SAVE_NODES, [row._replace(stale=0)])
    return False


# --- sources of builds ------------------------------------------------------------------------------------


class SegmentContent(NamedTuple):
    """The events of a segment, and the earlier events that it repeats."""

    events: list[MemoryEventRow]
    repeated: list[MemoryEventRow]


async def segment_content(tx: Tx, row: TocNodeRow) -> SegmentContent:
    """Return the events of a segment, with the beginning of each text."""
    low, high = row.start_ms, row.end_ms
    shared = {"characters": READ_CHARACTERS, "limit": SEGMENT_EVENTS}
    events = await tx.all(
        sql.SEGMENT_EVENTS, low=low, low_id=row.first_id, high=high, high_id=row.last_id, **shared
    )
    first = EventSize(row.first_id or "", row.start_ms, 0)
    before = await tx.all(
        sql.SIZES_BEFORE, low=low - GAP_MS, from_ms=low, from_id=row.first_id, limit=OVERLAP_EVENTS
    )
    taken = overlap(before[::-1], first)
    if not taken:
        return SegmentContent(events, [])
    start, *_ = taken
    end = taken[-1]
    repeated = await tx.all(
        sql.SEGMENT_EVENTS,
        low=start.timestamp_ms,
        low_id=start.id,
        high=end.timestamp_ms,
        high_id=end.id,
        **shared,
    )
    return SegmentContent(events, repeated)


async def child_texts(tx: Tx, parent: str, after: tuple[int, str], limit: int) -> list[ChildNodeRow]:
    """Return the next children of a node that have a complete version."""
    after_ms, after_id = after
    return await tx.all(sql.CHILD_TEXTS, parent=parent, after_ms=after_ms, after_id=after_id, limit=limit)


# --- results of builds ------------------------------------------------------------------------------------


class Built(NamedTuple):
    """The result of a build."""

    node_id: str
    builder: str
    job: str
    made_of: str
    """Digest of the segment's events, or of the versions of the children."""
    title: str
    body: str
    text: TextRow
    grips: tuple[GripRow, ...] = ()
    grip_texts: tuple[TextRow, ...] = ()
    effect: str = ""
    """Body of the outbox entry that indexes its documents."""


async def finish(tx: Tx, done: Built) -> int | None:
    """Store the result as a new version, unless content and text are unchanged; return the version.

    Return None if another job builds the node now. The node stays stale if it has changed meanwhile.
    """
    unlocked = await tx.all(sql.GET_NODES, ids=[done.node_id])
    wanted = {done.node_id, *(row.parent_id for row in unlocked if row.parent_id)}
    rows = {row.id: row for row in await tx.all(sql.LOCK_NODES, ids=sorted(wanted))}
    row = rows.get(done.node_id)
    if row is None or row.status != BUILDING or row.builder != done.builder:
        return None
    last = await tx.one(sql.GET_VERSION, id=row.id, version=row.version)
    differs = last is None or (last.title, last.body) != (done.title, done.body)
    says_more = differs or done.made_of != made_of_before(row)
    version = row.version + 1 if says_more else row.version
    stale = await _compute_source(tx, row) != done.made_of
    await _save(tx, built(row, done.made_of, version=version, stale=stale))
    if says_more:
        await tx.write(sql.ADD_VERSIONS.of([NodeVersionRow(row.id, version, tx.now, done.title, done.body)]))
        await _write_texts(tx, row, done)
        if row.parent_id is not None:
            await tx.execute(sql.MARK_STALE, id=row.parent_id)
    await tx.write(
        sql.SET_CHECKPOINT.of([BuildProgressRow(done.job, row.level, row.id, row.end_ms, 1, tx.now)])
    )
    if says_more:
        await put(tx, [NewEffect(INDEX_CONSUMER, row.id, done.effect)])
    return version


async def _compute_source(tx: Tx, row: TocNodeRow) -> str:
    """Return the current content digest of a node."""
    if row.level == SEGMENT:
        return row.content
    return versions_digest(await tx.all(sql.CHILD_VERSIONS, parent=row.id))


async def _write_texts(tx: Tx, row: TocNodeRow, done: Built) -> None:
    """Store the grips of a new version, and replace the documents of node and grips."""
    before = await tx.all(sql.GRIPS_OF, ids=[row.id]) if row.level == SEGMENT else []
    if done.grips:
        await tx.write(sql.ADD_GRIPS.of(sorted(done.grips)))
    kept = {grip.id for grip in done.grips}
    await put_texts(tx, [done.text, *done.grip_texts], [id for id in before if id not in kept])


async def fail(tx: Tx, node_id: str, builder: str, error: str, wait: int) -> None:
    """Write a failed build, which is due again after `wait` microseconds."""
    (row,) = await tx.all(sql.LOCK_NODES, ids=[node_id]) or (None,)
    if row is not None and row.status == BUILDING and row.builder == builder:
        await _save(tx, failed(row, error, tx.now + wait))


async def checkpoints(tx: Tx) -> list[BuildProgressRow]:
    """Return the progress of the namespace's jobs."""
    return await tx.all(sql.GET_CHECKPOINTS)


async def child_versions(tx: Tx, parent: str) -> Sequence[ChildVersion]:
    """Return the children of a node that have a complete version."""
    return await tx.all(sql.CHILD_VERSIONS, parent=parent)
