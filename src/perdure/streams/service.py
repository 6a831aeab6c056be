"""Streams for callers: appended events are passed to the followers in this process."""

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
"""Maximum delay of changes whose hint was lost."""
POLL_STREAMS = 500
EXPIRE_SECONDS = 60.0


class Streams:
    """The streams of a database, followed from any event loop of this process.

    This is no `Service`: one object serves every namespace (its methods take the namespace's number), so that
    all readers of a stream share one tail, and the operations of runs append the events. `resolve` returns
    the data of events that refer to checkpoints.
    """

    def __init__(self, storage: Storage, resolve: Resolve | None = None) -> None:
        self.storage = storage
        self._resolve = resolve
        self._lock = threading.Lock()
        self._tails: dict[StreamKey, tuple[Tail, ...]] = {}
        self._polling = False

    def offer(self, ns: int, append: StreamAppend, appended: StreamAppended) -> None:
        """Pass committed events to their followers in this process; callable from any thread."""
        end = appended.last_seq if append.ends else None
        self._pass_on(StreamKey(ns, append.stream, False), append, appended.last_seq, appended.ms, end)
        if append.into is not None and appended.joined is not None:
            place = appended.joined
            self._pass_on(StreamKey(ns, append.into, True), append, place.last_seq, place.ms, None)

    def _pass_on(self, key: StreamKey, append: StreamAppend, last: int, ms: int, end: int | None) -> None:
        tails = self._tails.get(key)
        if not tails:
            return
        after = last - len(append.events)
        source, attempt = append.stream, append.attempt
        events = [
            StreamEvent(seq, ms, source, attempt, event.event, event.body)
            for seq, event in enumerate(append.events, after + 1)
        ]
        burst = Burst(events, after, last)
        for tail in tails:
            tail.call_in_loop(tail.take, burst, end)

    def is_followed(self, ns: int | None, stream: str, into: str) -> bool | None:
        """Return whether a stream, or the joined stream `into`, has readers; callable from any thread.

        None if this process has no readers, but another process may have some.
        """
        if ns is not None and (
            StreamKey(ns, stream, False) in self._tails or StreamKey(ns, into, True) in self._tails
        ):
            return True
        return False if ns is not None and self.storage.engine == "sqlite" else None

    def follow(self, ns: int, stream: str, after: int | None, *, joined: bool = False) -> Follower:
        """Read a stream after a position, or with None from now on; the stream may not exist yet."""
        return Follower(self._get_tail(StreamKey(ns, stream, joined)), after)

    def expect(self, ns: int, stream: str) -> Follower:
        """Read a stream before its first event; its events then need no read of the table."""
        return Follower(self._get_tail(StreamKey(ns, stream, False), is_new=True), 0)

    def _get_tail(self, key: StreamKey, *, is_new: bool = False) -> Tail:
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
            left = tuple(other for other in self._tails.get(tail.key, ()) if other is not tail)
            if left:
                self._tails[tail.key] = left
            else:
                self._tails.pop(tail.key, None)

    async def poll(self) -> None:
        """Replace lost hints: check every followed stream for changes."""
        with self._lock:
            tails = [tail for group in self._tails.values() for tail in group if tail.end is None]
        for ns in sorted({tail.key.ns for tail in tails}):
            mine = [tail for tail in tails if tail.key.ns == ns]
            for start in range(0, len(mine), POLL_STREAMS):
                await self._compare(ns, mine[start : start + POLL_STREAMS])

    async def _compare(self, ns: int, tails: list[Tail]) -> None:
        current = await self.storage.read(heads, sorted({tail.key.stream for tail in tails}), ns=ns)
        for tail in tails:
            if tail.loop.is_closed():
                self._forget(tail)
            elif tail.differs(current.get(tail.key.stream)):
                tail.call_in_loop(tail.stir)

    def start_timers(self, stream_ttl: float | None) -> None:
        """Delete streams `stream_ttl` seconds after their end; None keeps them."""
        if stream_ttl is not None:
            self.storage.timers.every(EXPIRE_SECONDS, partial(self.expire, stream_ttl))

    async def expire(self, stream_ttl: float) -> int:
        """Delete streams that ended more than `stream_ttl` seconds ago; return how many."""
        total = 0
        while count := await self.storage.background(expire, int(stream_ttl * MICROS)):
            total += count
        return total
