"""Walk over days of memory that are too old."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.storage.port import Tx
from perdure.memory.calendar import DAY_MS, day_id
from perdure.memory.operations.remove import count_day, delete_day, next_day
from perdure.retention.walking import Dropped, DueItem, DueItems, Walk

FOUND_DAYS = 50


async def _find(tx: Tx, age: int, place: int | None) -> DueItems:
    """Find days with a last moment that is too old. Events have wall-clock times."""
    before = (tx.wall - age) // 1000
    start: int | None = -DAY_MS if place is None else place
    due: list[DueItem] = []
    while len(due) < FOUND_DAYS and start is not None:
        start = await next_day(tx, start)
        if start is None or start + DAY_MS > before:
            return due, None
        due.append(DueItem(day_id(start), await count_day(tx, start)))
        start += DAY_MS
    return due, start


async def _drop(tx: Tx, age: int, ids: Sequence[str]) -> Dropped:
    first, *rest = ids
    deleted, done = await delete_day(tx, first)
    return Dropped(deleted, rest if done else ids)


MEMORY = [Walk(_find, _drop)]
