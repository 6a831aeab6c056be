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
    """Insert new events with their outbox entries; return the ids of the new events.

    `events` are in the order of their ids, each id once. `bodies` are the bodies of the outbox entries.
    """
    rows = [event.row._replace(received_at=tx.now) for event in events]
    created = {id for _, id in await tx.insert_new(sql.ADD_EVENTS, rows)}
    if created:
        changes.tell(tx, KIND, [(id, "added") for id in sorted(created)])
        await tx.defer(sql.ADD_TEXTS.of([event.text for event in events if event.row.id in created]))
        subject = min(created)
        index, toc = bodies
        await put(tx, [NewEffect(INDEX_CONSUMER, subject, index), NewEffect(TOC_CONSUMER, subject, toc)])
    return created


class Stretch(NamedTuple):
    """A range of time, both ends included, after a position."""

    low: int
    high: int
    after: EventCursor
    session_id: str | None = None


async def events_between(
    tx: Tx, stretch: Stretch, limit: int, most_bytes: int
) -> tuple[list[MemoryEventRow], bool]:
    """Return the next events of a period in order of time, and whether there are more events.

    Their texts have at most `most_bytes` bytes together, but the first event is always returned.
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
    """Return how many of the first texts have at most `most` bytes together; at least 1."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and total > most:
            return count
    return len(sizes)


async def get_events(tx: Tx, ids: Sequence[str]) -> dict[str, MemoryEventRow]:
    """Return the existing events by id."""
    return {row.id: row for row in await tx.all(sql.GET_EVENTS, ids=sorted(set(ids)))}


async def cited(tx: Tx, ids: Sequence[str]) -> dict[str, CitedRow]:
    """Return session and time of the existing events by id."""
    return {row.id: row for row in await tx.all(sql.CITED, ids=sorted(set(ids)))}
