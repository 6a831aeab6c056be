"""Operations on the table of contents: the segments of days, and reads.

Each transaction locks its node rows in the order of their ids: a day before its segments.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.jobs.model import NewJob
from perdure.jobs.operations import enqueue_jobs
from perdure.kernel.storage.port import Tx
from perdure.memory import sql
from perdure.memory.calendar import YEAR, day_id, list_ancestors
from perdure.memory.model import EventCursor, MemoryEventRow
from perdure.memory.nodes import GripRow, ShownNode, TocNodeRow, new_node, segment_node
from perdure.memory.operations.events import Stretch, count_fitting, events_between
from perdure.memory.operations.index import put_texts
from perdure.memory.segments import MemorySegment, cut

CUT_EVENTS = 10_000
"""Number of events that one transaction cuts into segments. Two segments always have fewer events."""
SHOWN_CHILDREN = 1000


# --- segments ---------------------------------------------------------------------------------------------


async def mark_days(tx: Tx, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Mark the changed ranges of days; return the ids of the days."""
    days: dict[str, tuple[int, int]] = {}
    for first, last in spans:
        known_first, known_last = days.get(day_id(first), (first, last))
        days[day_id(first)] = (min(first, known_first), max(last, known_last))
    ids = sorted({*days, *(above for day in days for above in list_ancestors(day))})
    await tx.write(sql.ADD_NODES.of([new_node(id, tx.now) for id in ids]))
    rows = await tx.all(sql.LOCK_NODES, ids=sorted(days))
    await tx.update_many(sql.SAVE_NODES, [_mark_dirty(row, *days[row.id]) for row in rows])
    return sorted(days)


def _mark_dirty(row: TocNodeRow, first: int, last: int) -> TocNodeRow:
    high = last if row.dirty_end_ms is None else max(last, row.dirty_end_ms)
    if row.dirty_ms is not None and row.dirty_ms < first:
        return row._replace(dirty_end_ms=high)
    return row._replace(dirty_ms=first, dirty_id=None, dirty_end_ms=high)


async def cut_day(tx: Tx, day: str, build: NewJob) -> bool:
    """Cut the changed range of a day into segments; return whether there is more to cut.

    The `build` job builds the changed segments.
    """
    (row,) = await tx.all(sql.LOCK_NODES, ids=[day]) or (None,)
    if row is None or row.dirty_ms is None or row.dirty_end_ms is None:
        return False
    start = await _find_first_cut(tx, row, row.dirty_ms)
    events = await tx.all(
        sql.SIZES,
        low=start.timestamp_ms,
        high=row.end_ms,
        from_ms=start.timestamp_ms,
        from_id=start.id,
        limit=CUT_EVENTS,
    )
    segments = cut(events)
    old = [
        segment
        for segment in await tx.all(sql.SEGMENTS_FROM, day=day, ms=start.timestamp_ms)
        if segment.place >= start
    ]
    whole = len(events) < CUT_EVENTS
    changed, unchanged = _take_changed(segments if whole else segments[:-1], old, row.dirty_end_ms)
    reached = unchanged or (None if whole else get_segment_start(segments[-1]))
    replaced = [segment for segment in old if reached is None or segment.place < reached]
    has_lost = await _replace(tx, replaced, changed, build)
    if has_lost and not row.stale:
        row = row._replace(stale=1, changed_at=tx.now)
    if unchanged is None and reached is not None:
        row = row._replace(dirty_ms=reached.timestamp_ms, dirty_id=reached.id)
    else:
        row = row._replace(dirty_ms=None, dirty_id=None, dirty_end_ms=None)
    await tx.update_many(sql.SAVE_NODES, [row])
    return row.dirty_ms is not None


async def _find_first_cut(tx: Tx, day: TocNodeRow, ms: int) -> EventCursor:
    """Return where to begin: at a cut that no change has moved."""
    if day.dirty_id is not None:
        return EventCursor(ms, day.dirty_id)
    before = await tx.one(sql.SEGMENT_BEFORE, day=day.id, ms=ms)
    return EventCursor(day.start_ms, "") if before is None else before.place


def get_segment_start(segment: MemorySegment) -> EventCursor:
    """Return where a segment begins."""
    return EventCursor(segment.first.timestamp_ms, segment.first.id)


def _take_changed(
    segments: Sequence[MemorySegment], old: Sequence[TocNodeRow], changed_until: int
) -> tuple[list[MemorySegment], EventCursor | None]:
    """Return the segments before the first unchanged one that begins after all changes.

    Also return the position of that unchanged segment, or None.
    """
    old_ids = {row.id for row in old}
    taken: list[MemorySegment] = []
    for segment in segments:
        if segment.first.timestamp_ms > changed_until and segment.id in old_ids:
            return taken, get_segment_start(segment)
        taken.append(segment)
    return taken, None


async def _replace(
    tx: Tx, old: Sequence[TocNodeRow], segments: Sequence[MemorySegment], build: NewJob
) -> bool:
    """Insert new segments, update changed segments, delete the rest. Return True if a segment was deleted."""
    old_rows = {row.id: row for row in old}
    fresh = [segment_node(segment, tx.now) for segment in segments]
    added = [row for row in fresh if row.id not in old_rows]
    moved = [_change_segment(old_rows[row.id], row) for row in fresh if _differs(old_rows.get(row.id), row)]
    gone = sorted(old_rows.keys() - {row.id for row in fresh})
    if added:
        await tx.write(sql.ADD_NODES.of(sorted(added)))
    if moved:
        await tx.update_many(sql.SAVE_NODES, sorted(moved))
    if gone:
        await drop_nodes(tx, gone)
    if added or moved:
        await enqueue_jobs(tx, [build])
    return bool(gone)


def _differs(old: TocNodeRow | None, row: TocNodeRow) -> bool:
    return old is not None and old.content != row.content


def _change_segment(old: TocNodeRow, row: TocNodeRow) -> TocNodeRow:
    """Return a segment with its new events."""
    return old._replace(
        end_ms=row.end_ms,
        last_id=row.last_id,
        events=row.events,
        tokens=row.tokens,
        stale=1,
        changed_at=row.changed_at,
        retry_at=None,
    )


async def drop_nodes(tx: Tx, ids: Sequence[str]) -> None:
    """Delete segments with their versions, grips and documents."""
    grips = await tx.all(sql.GRIPS_OF, ids=list(ids))
    for delete in (sql.DROP_VERSIONS, sql.DROP_GRIPS, sql.DROP_NODES):
        await tx.execute(delete, ids=list(ids))
    await put_texts(tx, [], [*ids, *grips])


# --- reading ----------------------------------------------------------------------------------------------


async def show_nodes(tx: Tx, ids: Sequence[str]) -> list[tuple[ShownNode, list[str]]]:
    """Return the existing nodes, each with its children."""
    return await _with_children(tx, await tx.all(sql.SHOW_NODES, ids=list(ids)))


async def show_roots(tx: Tx, before: int, limit: int) -> list[tuple[ShownNode, list[str]]]:
    """Return the years that begin no later than a time, latest first."""
    return await show_level(tx, YEAR, before, limit)


async def show_level(tx: Tx, level: int, before: int, limit: int) -> list[tuple[ShownNode, list[str]]]:
    """Return the nodes of a level that begin no later than a time, latest first."""
    return await _with_children(tx, await tx.all(sql.SHOW_LEVEL, level=level, before=before, limit=limit))


async def show_children(
    tx: Tx, parent: str, after: EventCursor, limit: int
) -> list[tuple[ShownNode, list[str]]]:
    """Return the next children of a node, in order of time."""
    rows = await tx.all(
        sql.SHOW_CHILDREN, parent=parent, after_ms=after.timestamp_ms, after_id=after.id, limit=limit
    )
    return await _with_children(tx, rows)


async def _with_children(tx: Tx, rows: Sequence[ShownNode]) -> list[tuple[ShownNode, list[str]]]:
    children: dict[str, list[str]] = {row.id: [] for row in rows}
    if children:
        for child in await tx.all(sql.CHILD_IDS, parents=sorted(children), limit=SHOWN_CHILDREN):
            children[child.parent_id].append(child.id)
    return [(row, children[row.id]) for row in rows]


async def get_grips(tx: Tx, ids: Sequence[str]) -> dict[str, GripRow]:
    """Return the existing grips by id."""
    return {row.id: row for row in await tx.all(sql.GET_GRIPS, ids=sorted(set(ids)))} if ids else {}


async def around(
    tx: Tx,
    session_id: str,
    ends: tuple[EventCursor, EventCursor],
    counts: tuple[int, int],
    window: int,
    most_bytes: int,
) -> tuple[list[MemoryEventRow], list[MemoryEventRow]]:
    """Return the events of a session just before and just after given events, within a window of time.

    On each side the texts have at most `most_bytes` bytes together; the nearest one may have more.
    """
    (first, last), (before, after) = ends, counts
    place = {
        "session_id": session_id,
        "low": first.timestamp_ms - window,
        "at_ms": first.timestamp_ms,
        "at_id": first.id,
    }
    sizes = await tx.all(sql.SESSION_BYTES_BEFORE, **place, limit=before)
    earlier = await tx.all(sql.SESSION_BEFORE, **place, limit=count_fitting(sizes, most_bytes))
    stretch = Stretch(last.timestamp_ms, last.timestamp_ms + window, last, session_id)
    later, _ = await events_between(tx, stretch, after, most_bytes)
    return earlier[::-1], later
