"""Streams as callers hold them: appended events are passed on to the followers in this process."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from perdure.kernel.clock import MICROS
from perdure.kernel.storage.port import Storage
from perdure.streams.model import Burst, StreamEvent
from perdure.streams.operations import Resolve, StreamAppend, StreamAppended, expire, heads
from perdure.streams.tail import Follower, StreamKey, Tail

__all__ = ["Burst", "Follower", "Streams"]

POLL_SECONDS = 1.5
"""What no hint tells of is found within this time."""
POLL_STREAMS = 500
EXPIRE_SECONDS = 60.0


class Streams:
    """The streams of a database, followed from any event loop of this process.

    It is no `Service`: one object serves every namespace (its methods take the namespace's number), so that
    all readers of a stream share one tail, and events are appended by the operations of runs.
    `resolve` gives the data of events that refer to checkpoints.
    """

    def __init__(self, storage: Storage, resolve: Resolve | None = None) -> None:
        self.storage = storage
        self._resolve = resolve
        self._lock = threading.Lock()
        self._tails: dict[StreamKey, tuple[Tail, ...]] = {}
        self._polling = False

    def offer(self, ns: int, append: StreamAppend, appended: StreamAppended) -> None:
        """Hand what was appended to its followers in this process, once it is committed; from any thread."""
        end = appended.last_seq if append.ends else None
        self._hand(StreamKey(ns, append.stream, False), append, appended.last_seq, appended.ms, end)
        if append.into is not None and appended.joined is not None:
            place = appended.joined
            self._hand(StreamKey(ns, append.into, True), append, place.last_seq, place.ms, None)

    def _hand(self, key: StreamKey, append: StreamAppend, last: int, ms: int, end: int | None) -> None:
        tails = self._tails.get(key)
        if not tails:
            return
        after = last - len(append.events)
        source, attempt = append.stream, append.attempt
        events = [
            StreamEvent(seq, ms, source, attempt, each.event, each.body)
            for seq, each in enumerate(append.events, after + 1)
        ]
        burst = Burst(events, after, last)
        for tail in tails:
            tail.tell(tail.take, burst, end)

    def is_followed(self, ns: int | None, stream: str, into: str) -> bool | None:
        """Whether somebody reads a stream, or the one that it is joined into; asked from any thread.

        None if nobody does so here, but another process may have readers.
        """
        if ns is not None and (
            StreamKey(ns, stream, False) in self._tails or StreamKey(ns, into, True) in self._tails
        ):
            return True
        return False if ns is not None and self.storage.engine == "sqlite" else None

    def follow(self, ns: int, stream: str, after: int | None, *, joined: bool = False) -> Follower:
        """Begin to read a stream after a place, or from now on with None; it need not exist yet."""
        return Follower(self._tail(StreamKey(ns, stream, joined)), after)

    def expect(self, ns: int, stream: str) -> Follower:
        """Begin to read a stream that nobody has begun to write: what it gets is at hand without a look."""
        return Follower(self._tail(StreamKey(ns, stream, False), is_new=True), 0)

    def _tail(self, key: StreamKey, *, is_new: bool = False) -> Tail:
        loop = asyncio.get_running_loop()
        for tail in self._tails.get(key, ()):
            if tail.loop is loop:
                return tail
        tail = Tail(self.storage, key, self._forget, self._resolve, is_new=is_new)
        with self._lock:
            self._tails[key] = (*self._tails.get(key, ()), tail)
            if not self._polling:
                self._polling = True
                self.storage.timers.every(POLL_SECONDS, self.poll)
        return tail

    def _forget(self, tail: Tail) -> None:
        with self._lock:
            left = tuple(each for each in self._tails.get(tail.key, ()) if each is not tail)
            if left:
                self._tails[tail.key] = left
            else:
                self._tails.pop(tail.key, None)

    async def poll(self) -> None:
        """Make up for lost hints: look whether any stream that is followed has changed."""
        with self._lock:
            tails = [tail for each in self._tails.values() for tail in each if tail.end is None]
        for ns in sorted({tail.key.ns for tail in tails}):
            mine = [tail for tail in tails if tail.key.ns == ns]
            for start in range(0, len(mine), POLL_STREAMS):
                await self._compare(ns, mine[start : start + POLL_STREAMS])

    async def _compare(self, ns: int, tails: list[Tail]) -> None:
        found = await self.storage.read(heads, sorted({tail.key.stream for tail in tails}), ns=ns)
        for tail in tails:
            if tail.loop.is_closed():
                self._forget(tail)
            elif tail.differs(found.get(tail.key.stream)):
                tail.tell(tail.stir)

    def start_timers(self, stream_ttl: float | None) -> None:
        """Drop streams by themselves so many seconds after their end, if that is wished."""
        if stream_ttl is not None:
            self.storage.timers.every(EXPIRE_SECONDS, partial(self.expire, stream_ttl))

    async def expire(self, stream_ttl: float) -> int:
        """Drop the streams that ended more than so many seconds ago; returns how many."""
        total = 0
        while count := await self.storage.background(expire, int(stream_ttl * MICROS)):
            total += count
        return total
