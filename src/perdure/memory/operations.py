"""Operations on memory's events and its index. Events are locked before documents, both before the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.kernel.storage.port import Tx
from perdure.memory import sql
from perdure.memory.model import (
    INDEX_CONSUMER,
    TOC_CONSUMER,
    CheckedEvent,
    CitedRow,
    CounterRow,
    EventPlace,
    EventRow,
    HitRow,
    PlaceRow,
    places_of,
)
from perdure.outbox.operations import NewEffect, put

INDEX_ROWS = 500
"""How many documents one transaction indexes."""


# --- events -----------------------------------------------------------------------------------------------


async def ingest(tx: Tx, events: Sequence[CheckedEvent], bodies: tuple[str, str]) -> set[str]:
    """Store the events whose ids are new, and what is to be done with them; returns those ids.

    `events` are in the order of their ids, each id once. `bodies` are those of the outbox.
    """
    rows = [each.row._replace(received_at=tx.now) for each in events]
    created = {id for _, id in await tx.insert_new(sql.ADD_EVENTS, rows)}
    if created:
        await tx.defer(sql.ADD_TEXTS.of([each.text for each in events if each.row.id in created]))
        subject = min(created)
        index, toc = bodies
        await put(tx, [NewEffect(INDEX_CONSUMER, subject, index), NewEffect(TOC_CONSUMER, subject, toc)])
    return created


class Stretch(NamedTuple):
    """Events of a stretch of time, both ends included, after a place."""

    low: int
    high: int
    after: EventPlace
    session_id: str | None = None


async def events_between(tx: Tx, stretch: Stretch, limit: int) -> list[EventRow]:
    """The next events of a stretch, in the order of their time."""
    where = {
        "low": stretch.low,
        "high": stretch.high,
        "after_ms": stretch.after.timestamp_ms,
        "after_id": stretch.after.id,
        "limit": limit,
    }
    if stretch.session_id is None:
        return await tx.all(sql.EVENTS_BETWEEN, **where)
    return await tx.all(sql.SESSION_BETWEEN, session_id=stretch.session_id, **where)


async def get_events(tx: Tx, ids: Sequence[str]) -> dict[str, EventRow]:
    """Those of the events that exist."""
    return {row.id: row for row in await tx.all(sql.GET_EVENTS, ids=sorted(set(ids)))}


async def cited(tx: Tx, ids: Sequence[str]) -> dict[str, CitedRow]:
    """Where those of the events stand that exist."""
    return {row.id: row for row in await tx.all(sql.CITED, ids=sorted(set(ids)))}


# --- the index --------------------------------------------------------------------------------------------


async def index_some(tx: Tx) -> int:
    """Index some documents that are not indexed yet; returns how many there were.

    Places are given in the order of the commits: whoever gives them holds the counter of the namespace.
    """
    counter = await lock_counter(tx)
    ids = await tx.all(sql.PENDING, limit=INDEX_ROWS)
    if ids:
        rows = [PlaceRow(id, counter.placed + number) for number, id in enumerate(ids, 1)]
        await tx.write(sql.PLACE.of(rows))
        count = len(rows)
        counter = counter._replace(placed=counter.placed + count, documents=counter.documents + count)
        await tx.update_many(sql.COUNT, [counter])
    return len(ids)


async def lock_counter(tx: Tx) -> CounterRow:
    """The counters of the namespace, which no other transaction changes meanwhile."""
    counter = await tx.one(sql.LOCK_COUNTER)
    if counter is None:
        assert tx.ns is not None
        low, _ = places_of(tx.ns)
        await tx.write(sql.ADD_COUNTER.of([CounterRow(tx.ns, low, 0, low)]))
        counter = await tx.one(sql.LOCK_COUNTER)
    assert counter is not None
    return counter


async def get_counter(tx: Tx) -> CounterRow | None:
    """The counters of the namespace, if it has any."""
    return await tx.one(sql.GET_COUNTER)


# --- search -----------------------------------------------------------------------------------------------


class TextSearch(NamedTuple):
    """A query in the engine's words, and what it is confined to."""

    match: str
    tags: tuple[str, ...]
    since: int | None
    until: int | None
    limit: int


NEWEST = 5000
"""How many matches PostgreSQL ranks, the newest ones: it reads the words of each."""
ALL_MATCHES = 100_000


async def search_texts(tx: Tx, search: TextSearch) -> list[HitRow]:
    """The documents that match a query best."""
    assert tx.ns is not None
    low, high = places_of(tx.ns)
    shared = {
        "match": search.match,
        "tags": list(search.tags),
        "limit": search.limit,
        "low": low,
        "high": high,
    }
    if search.since is None and search.until is None:
        return await tx.all(sql.SEARCH, **shared, most=NEWEST)
    since = 0 if search.since is None else search.since
    until = 2**62 if search.until is None else search.until
    return await tx.all(sql.SEARCH_BETWEEN, **shared, since=since, until=until, most=ALL_MATCHES)
