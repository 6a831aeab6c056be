"""Deletion of old events by whole days, with their part of the table of contents."""

from __future__ import annotations

from typing import Final

from perdure.kernel import changes
from perdure.kernel.storage.port import Tx
from perdure.memory import sql
from perdure.memory.calendar import DAY, DAY_MS, date_to_ms, list_ancestors, ms_to_date, parse_id
from perdure.memory.operations import builds, events
from perdure.memory.operations.index import put_texts
from perdure.memory.operations.maintenance import next_event
from perdure.memory.operations.toc import drop_nodes

SEGMENTS: Final = 50
EVENT_ROWS: Final = 300


async def next_day(tx: Tx, ms: int) -> int | None:
    """Return the start of the next day that has an event or a node."""
    event = await next_event(tx, ms)
    node = await tx.one(sql.NEXT_DAY, level=DAY, ms=ms)
    found = [
        each for each in (None if event is None else date_to_ms(ms_to_date(event)), node) if each is not None
    ]
    return min(found, default=None)


async def count_day(tx: Tx, start_ms: int) -> int:
    """Count the events of a day."""
    return await tx.one(sql.COUNT_BETWEEN, low=start_ms, high=start_ms + DAY_MS - 1) or 0


async def delete_day(tx: Tx, day: str) -> tuple[int, bool]:
    """Delete a part of a day: first segments and grips, then its node, then its events.

    Ancestors of the day stay until they have no children. Return the number of deleted events, and whether
    nothing is left.
    """
    period = parse_id(day)
    assert period is not None, day
    await tx.all(sql.LOCK_NODES, ids=sorted([day, *list_ancestors(day)]))
    segments = await tx.all(sql.CHILD_IDS, parents=[day], limit=SEGMENTS)
    if segments:
        await _drop_nodes(tx, sorted(row.id for row in segments))
        return 0, False
    await _drop_nodes(tx, [day])
    for above in list_ancestors(day):
        if await tx.all(sql.CHILD_IDS, parents=[above], limit=1):
            break
        await _drop_nodes(tx, [above])
    ids = await tx.all(sql.LOCK_BETWEEN, low=period.start_ms, high=period.end_ms, limit=EVENT_ROWS)
    if ids:
        await tx.execute(sql.DROP_EVENTS, ids=sorted(ids))
        await put_texts(tx, [], ids)
        changes.tell(tx, events.KIND, [(id, "deleted") for id in ids])
    return len(ids), len(ids) < EVENT_ROWS


async def _drop_nodes(tx: Tx, ids: list[str]) -> None:
    await drop_nodes(tx, ids)
    changes.tell(tx, builds.KIND, [(id, "deleted") for id in ids])
