"""Operations on events: ingest and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.kernel import changes
from perdure.kernel.storage.port import Tx
from perdure.memory import sql
from perdure.memory.model import (
    INDEX_CONSUMER,
    TOC_CONSUMER,
    CheckedEvent,
    CitedRow,
    EventCursor,
    MemoryEventRow,
)
from perdure.outbox.operations import NewEffect, put

KIND = "memory_event"


async def ingest(tx: Tx, events: Sequence[CheckedEvent], bodies: tuple[str, str]) -> set[str]:
    """Store the events whose ids are new, and what is to be done with them; returns those ids.

    `events` are in the order of their ids, each id once. `bodies` are those of the outbox.
    """
    rows = [each.row._replace(received_at=tx.now) for each in events]
    created = {id for _, id in await tx.insert_new(sql.ADD_EVENTS, rows)}
    if created:
        changes.tell(tx, KIND, [(id, "added") for id in sorted(created)])
        await tx.defer(sql.ADD_TEXTS.of([each.text for each in events if each.row.id in created]))
        subject = min(created)
        index, toc = bodies
        await put(tx, [NewEffect(INDEX_CONSUMER, subject, index), NewEffect(TOC_CONSUMER, subject, toc)])
    return created


class Stretch(NamedTuple):
    """Events of a stretch of time, both ends included, after a place."""

    low: int
    high: int
    after: EventCursor
    session_id: str | None = None


async def events_between(
    tx: Tx, stretch: Stretch, limit: int, most_bytes: int
) -> tuple[list[MemoryEventRow], bool]:
    """Return the next events of a stretch in the order of their time, and whether there are more.

    Events follow while their texts have at most `most_bytes` bytes together; the first one may have more.
    """
    where = {
        "low": max(stretch.low, stretch.after.timestamp_ms),
        "high": stretch.high,
        "after_ms": stretch.after.timestamp_ms,
        "after_id": stretch.after.id,
    }
    events, sizes = sql.EVENTS_BETWEEN, sql.BYTES_BETWEEN
    if stretch.session_id is not None:
        events, sizes = sql.SESSION_BETWEEN, sql.SESSION_BYTES_BETWEEN
        where["session_id"] = stretch.session_id
    bytes_of = await tx.all(sizes, **where, limit=limit + 1)
    count = count_fitting(bytes_of[:limit], most_bytes)
    return (await tx.all(events, **where, limit=count) if count else []), len(bytes_of) > count


def count_fitting(sizes: Sequence[int], most: int) -> int:
    """Return how many of the first texts have at most `most` bytes together, or 1 if the first has more."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and total > most:
            return count
    return len(sizes)


async def get_events(tx: Tx, ids: Sequence[str]) -> dict[str, MemoryEventRow]:
    """Those of the events that exist."""
    return {row.id: row for row in await tx.all(sql.GET_EVENTS, ids=sorted(set(ids)))}


async def cited(tx: Tx, ids: Sequence[str]) -> dict[str, CitedRow]:
    """Where those of the events stand that exist."""
    return {row.id: row for row in await tx.all(sql.CITED, ids=sorted(set(ids)))}
