"""Helpers for the tests of streams: a source of events, and the events that readers got."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.kernel.support import NS, soon

from perdure.kernel.signals.port import Hint
from perdure.kernel.storage.dialect import Statement, statement
from perdure.kernel.storage.port import Row, Storage, Tx
from perdure.streams.model import Burst, NewEvent, StreamEvent
from perdure.streams.operations import StreamAppend, StreamAppended, StreamSlice, append, drop, read
from perdure.streams.service import Follower, Streams

COUNT_EVENTS = statement("SELECT coalesce(sum(coalesce(count, 1)), 0) FROM stream_events")
COUNT_LINKS = statement("SELECT count(*) FROM stream_links")
COUNT_HEADS = statement("SELECT count(*) FROM streams")


def new_events(first: int, count: int) -> list[NewEvent]:
    """Build events whose bodies are their numbers."""
    return [NewEvent("custom", str(number)) for number in range(first, first + count)]


def seqs(events: Iterable[StreamEvent]) -> list[int]:
    return [event.seq for event in events]


async def _ask(tx: Tx, sql: Statement[Any], values: dict[str, Any]) -> Sequence[Row]:
    return [tuple(row) for row in await tx.all(sql, **values)]


async def ask(storage: Storage, sql: Statement[Any], **values: Any) -> Sequence[Row]:
    return await storage.read(_ask, sql, values, ns=NS)


async def _change(tx: Tx, sql: Statement[Any]) -> None:
    await tx.execute(sql)


async def change(storage: Storage, sql: Statement[Any]) -> None:
    await storage.run(_change, sql, ns=NS)


async def add(storage: Storage, *appends: StreamAppend) -> list[StreamAppended]:
    return await storage.run(append, appends, ns=NS)


async def page(storage: Storage, stream: str, after: int = 0, *args: Any) -> StreamSlice:
    return await storage.read(read, stream, after, *args, ns=NS)


class Source:
    """Appends to streams as a worker does, and offers the appended events."""

    def __init__(self, streams: Streams, *, offers: bool = True) -> None:
        self.streams = streams
        self.offers = offers
        self._counts: dict[str, int] = {}

    async def put(
        self, stream: str, count: int = 1, *, into: str | None = None, ends: bool = False
    ) -> StreamAppended:
        """Append `count` events; the body of each is its number in the stream."""
        first = self._counts.get(stream, 0) + 1
        self._counts[stream] = first + count - 1
        item = StreamAppend(stream, new_events(first, count), 1, into, ends)
        (done,) = await add(self.streams.storage, item)
        if self.offers:
            self.streams.offer(NS, item, done)
        return done

    async def drop(self, *streams: str) -> None:
        await self.streams.storage.run(drop, streams, ns=NS)
        for stream in streams:
            self._counts.pop(stream, None)


async def some(follower: Follower) -> Burst:
    """Return the next events, which must exist."""
    burst = await soon(follower.next())
    assert burst is not None
    return burst


async def idle(follower: Follower) -> None:
    """Assert that there are no events now, and that the stream continues."""
    burst = await follower.next(timeout=0)
    assert burst is not None
    assert len(burst) == 0


async def take(follower: Follower, count: int) -> list[StreamEvent]:
    """Read exactly `count` events, in any number of bursts."""
    events: list[StreamEvent] = []
    while len(events) < count:
        events += await some(follower)
    assert len(events) == count
    return events


async def rest(follower: Follower) -> list[StreamEvent]:
    """Return all events up to the end of the stream."""
    events: list[StreamEvent] = []
    while (burst := await soon(follower.next())) is not None:
        events += burst
    return events


def lose_hints(storage: Storage) -> None:
    """Simulate a lost connection."""

    def lose(hints: Iterable[Hint]) -> None:
        pass

    storage.signals.publish = lose  # type: ignore[method-assign]
