"""Operations on the table of contents: which segments a day has, and what readers see.

Rows of nodes are locked in the order of their ids, each transaction's at once: a day before its segments.
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
"""How many events one transaction cuts into segments: more than two segments can have."""
SHOWN_CHILDREN = 1000


# --- segments ---------------------------------------------------------------------------------------------


async def mark_days(tx: Tx, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Note the times of days at which something happened; returns the ids of the days."""
    days: dict[str, tuple[int, int]] = {}
    for first, last in spans:
        known_first, known_last = days.get(day_id(first), (first, last))
        days[day_id(first)] = (min(first, known_first), max(last, known_last))
    ids = sorted({*days, *(above for day in days for above in list_ancestors(day))})
    await tx.write(sql.ADD_NODES.of([new_node(id, tx.now) for id in ids]))
    rows = await tx.all(sql.LOCK_NODES, ids=sorted(days))
    await tx.update_many(sql.SAVE_NODES, [_dirty(row, *days[row.id]) for row in rows])
    return sorted(days)


def _dirty(row: TocNodeRow, first: int, last: int) -> TocNodeRow:
    high = last if row.dirty_end_ms is None else max(last, row.dirty_end_ms)
    if row.dirty_ms is not None and row.dirty_ms < first:
        return row._replace(dirty_end_ms=high)
    return row._replace(dirty_ms=first, dirty_id=None, dirty_end_ms=high)


async def cut_day(tx: Tx, day: str, build: NewJob) -> bool:
    """Cut a day into segments again where something has happened; returns whether there is more to cut.

    What changed is due to be built, which the job does.
    """
    (row,) = await tx.all(sql.LOCK_NODES, ids=[day]) or (None,)
    if row is None or row.dirty_ms is None or row.dirty_end_ms is None:
        return False
    start = await _first_cut(tx, row, row.dirty_ms)
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
        each
        for each in await tx.all(sql.SEGMENTS_FROM, day=day, ms=start.timestamp_ms)
        if each.place >= start
    ]
    whole = len(events) < CUT_EVENTS
    changed, known = _until_known(segments if whole else segments[:-1], old, row.dirty_end_ms)
    reached = known or (None if whole else get_segment_start(segments[-1]))
    replaced = [each for each in old if reached is None or each.place < reached]
    await _replace(tx, row, replaced, changed, build)
    if known is None and reached is not None:
        row = row._replace(dirty_ms=reached.timestamp_ms, dirty_id=reached.id)
    else:
        row = row._replace(dirty_ms=None, dirty_id=None, dirty_end_ms=None)
    await tx.update_many(sql.SAVE_NODES, [row])
    return row.dirty_ms is not None


async def _first_cut(tx: Tx, day: TocNodeRow, ms: int) -> EventCursor:
    """Where to begin: a cut that nothing has moved."""
    if day.dirty_id is not None:
        return EventCursor(ms, day.dirty_id)
    before = await tx.one(sql.SEGMENT_BEFORE, day=day.id, ms=ms)
    return EventCursor(day.start_ms, "") if before is None else before.place


def get_segment_start(segment: MemorySegment) -> EventCursor:
    """Where a segment begins."""
    return EventCursor(segment.first.timestamp_ms, segment.first.id)


def _until_known(
    segments: Sequence[MemorySegment], old: Sequence[TocNodeRow], changed_until: int
) -> tuple[list[MemorySegment], EventCursor | None]:
    """The segments up to one that was there before and begins after all changes: from there on nothing moves.

    Gives the place of that one too, if there is one.
    """
    known = {row.id for row in old}
    taken: list[MemorySegment] = []
    for segment in segments:
        if segment.first.timestamp_ms > changed_until and segment.id in known:
            return taken, get_segment_start(segment)
        taken.append(segment)
    return taken, None


async def _replace(
    tx: Tx, day: TocNodeRow, old: Sequence[TocNodeRow], segments: Sequence[MemorySegment], build: NewJob
) -> None:
    """Write the segments that are new or changed, and delete those that are no more."""
    known = {row.id: row for row in old}
    fresh = [segment_node(segment, tx.now) for segment in segments]
    added = [row for row in fresh if row.id not in known]
    moved = [_moved(known[row.id], row) for row in fresh if _differs(known.get(row.id), row)]
    gone = sorted(known.keys() - {row.id for row in fresh})
    if added:
        await tx.write(sql.ADD_NODES.of(sorted(added)))
    if moved:
        await tx.update_many(sql.SAVE_NODES, sorted(moved))
    if gone:
        await drop_nodes(tx, gone)
        await tx.execute(sql.MARK_STALE, id=day.id)
    if added or moved:
        await enqueue_jobs(tx, [build])


def _differs(known: TocNodeRow | None, row: TocNodeRow) -> bool:
    return known is not None and known.content != row.content


def _moved(known: TocNodeRow, row: TocNodeRow) -> TocNodeRow:
    """A segment to which other events belong now."""
    return known._replace(
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
    """Those of the nodes that exist, each with its children."""
    return await _with_children(tx, await tx.all(sql.SHOW_NODES, ids=list(ids)))


async def show_roots(tx: Tx, before: int, limit: int) -> list[tuple[ShownNode, list[str]]]:
    """The years that begin no later than a time, the latest first."""
    return await show_level(tx, YEAR, before, limit)


async def show_level(tx: Tx, level: int, before: int, limit: int) -> list[tuple[ShownNode, list[str]]]:
    """Nodes of a level that begin no later than a time, the latest first."""
    return await _with_children(tx, await tx.all(sql.SHOW_LEVEL, level=level, before=before, limit=limit))


async def show_children(
    tx: Tx, parent: str, after: EventCursor, limit: int
) -> list[tuple[ShownNode, list[str]]]:
    """The next children of a node, in the order of their time."""
    rows = await tx.all(
        sql.SHOW_CHILDREN, parent=parent, after_ms=after.timestamp_ms, after_id=after.id, limit=limit
    )
    return await _with_children(tx, rows)


async def _with_children(tx: Tx, rows: Sequence[ShownNode]) -> list[tuple[ShownNode, list[str]]]:
    children: dict[str, list[str]] = {row.id: [] for row in rows}
    if children:
        for each in await tx.all(sql.CHILD_IDS, parents=sorted(children), limit=SHOWN_CHILDREN):
            children[each.parent_id].append(each.id)
    return [(row, children[row.id]) for row in rows]


async def get_grips(tx: Tx, ids: Sequence[str]) -> dict[str, GripRow]:
    """Those of the grips that exist."""
    return {row.id: row for row in await tx.all(sql.GET_GRIPS, ids=sorted(set(ids)))} if ids else {}


async def around(
    tx: Tx,
    session_id: str,
    ends: tuple[EventCursor, EventCursor],
    counts: tuple[int, int],
    window: int,
    most_bytes: int,
) -> tuple[list[MemoryEventRow], list[MemoryEventRow]]:
    """Return the events of a session just before and just after others, within a window of time.

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
