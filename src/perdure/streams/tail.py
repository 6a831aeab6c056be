"""The live end of a stream: read once in each event loop for any number of followers.

A tail keeps the latest bursts up to a limit; a follower keeps only its position. A slow follower misses kept
bursts and reads the table until it has caught up, so that it delays no other and costs no memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple

from perdure.kernel.errors import StorageClosed, StorageError
from perdure.kernel.storage.port import Storage
from perdure.streams.model import NOTHING, Burst, Head
from perdure.streams.operations import CHANNEL, PAGE_BYTES, PAGE_EVENTS, Resolve, StreamSlice, hint_key, read

logger = logging.getLogger(__name__)

KEPT_BURSTS = 256
KEPT_SIZE = 2 << 20
OFFER_SECONDS = 0.002
"""Seconds that a hint waits for an offer with the same events."""
QUIET_SECONDS = 0.1
"""Minimum seconds between reads caused by hints while offers arrive."""
BEHIND_ALL = 2**62
"""Position after every event: a read there returns only the head."""


class StreamKey(NamedTuple):
    """Key of a tail: namespace, stream, joined or not."""

    ns: int
    stream: str
    joined: bool


class Tail:
    """The end of one stream for the followers of one event loop; only that loop uses it."""

    def __init__(
        self,
        storage: Storage,
        key: StreamKey,
        forget: Callable[[Tail], None],
        resolve: Resolve | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        self.key = key
        self.loop = asyncio.get_running_loop()
        self.began: int | None = 0 if is_new else None
        """Last position of the stream when it was first read."""
        self.last = self.began
        """All events up to this number are committed and available to followers."""
        self.end: int | None = None
        self.gone = False
        self.error: Exception | None = None
        self._storage = storage
        self._forget = forget
        self._resolve = resolve
        self._followers: set[Follower] = set()
        self._existed = False
        self._offered = 0.0
        self._kept: deque[Burst] = deque()
        self._kept_size = 0
        self._pages: dict[int, asyncio.Task[Burst | Exception | None]] = {}
        self._again = False
        self._reading: asyncio.Task[None] | None = None
        self._watch = storage.signals.watch(CHANNEL, [hint_key(key.ns, key.stream)])
        self._listening = self.loop.create_task(self._listen())
        if not is_new:
            self.stir()

    # --- calls from outside

    def call_in_loop(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function of the tail in its loop; callable from any thread."""
        if _get_running_loop() is self.loop:
            function(*args)
            return
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # A closed loop has no followers.
            self._forget(self)

    def take(self, burst: Burst, end: int | None) -> None:
        """Take an offer: a burst that was just committed."""
        if self.gone or self.error is not None:
            return
        self._offered = self.loop.time()
        self._begin(burst.after)
        self._advance(burst, end)
        if self.last is not None and burst.last > self.last:
            self.stir()

    def stir(self) -> None:
        """Read the table, now or after the current read."""
        self._again = True
        if self._reading is None or self._reading.done():
            self._reading = self.loop.create_task(self._read_on())

    def differs(self, head: Head | None) -> bool:
        """Return whether the table has changed; callable from any thread."""
        if head is None:
            return self._existed or self.last is None
        return head.last_seq != self.last or head.end_seq != self.end

    def join(self, follower: Follower) -> None:
        self._followers.add(follower)

    def leave(self, follower: Follower) -> None:
        """Remove a follower; without followers the tail stops."""
        self._followers.discard(follower)
        if not self._followers:
            self._stop()

    # --- calls of followers

    def find(self, seq: int) -> Burst | None:
        """Return the kept burst that continues after `seq`."""
        for burst in reversed(self._kept):
            if burst.after <= seq:
                return burst.beyond(seq) if burst.last > seq else None
        return None

    async def page(self, after: int) -> Burst | None:
        """Return the stored events after a position; None if the stream is gone. Callers share a read."""
        task = self._pages.get(after)
        if task is None:
            task = self._pages[after] = self.loop.create_task(self._read_page(after))
            task.add_done_callback(lambda _: self._pages.pop(after))
        # The cancellation of one caller must not cancel the read of the others.
        page = await asyncio.shield(task)
        if isinstance(page, Exception):
            raise page
        return page

    def is_over(self, seq: int) -> bool:
        return self.gone or (self.end is not None and seq >= self.end)

    # --- reading

    async def _listen(self) -> None:
        while True:
            await self._watch.changed()
            await asyncio.sleep(OFFER_SECONDS)
            if self.loop.time() - self._offered < QUIET_SECONDS:
                await asyncio.sleep(QUIET_SECONDS)
            self.stir()

    async def _read_on(self) -> None:
        try:
            while self._again and not self.gone:
                self._again = False
                await self._catch_up()
        except StorageClosed as error:
            self._fail(error)
        except StorageError as error:
            logger.warning("stream %s: %s; it is read again at the next poll", self.key.stream, error)
        except Exception as error:  # noqa: BLE001 - raised to the followers
            self._fail(error)

    async def _catch_up(self) -> None:
        """Read everything after `last`; on the first read, find the last position."""
        while True:
            after = BEHIND_ALL if self.last is None else self.last
            page = await self._read(after)
            head = None if page is None else page.head
            if page is None or self.gone:
                return
            self._begin(0 if head is None else head.last_seq)
            if head is None:
                return
            self._advance(Burst(page.events, after, page.reached), head.end_seq)
            if self.last is None or head.last_seq <= self.last:
                return

    async def _read_page(self, after: int) -> Burst | Exception | None:
        try:
            page = await self._read(after)
        except Exception as error:  # noqa: BLE001 - raised by `page`
            return error
        if page is None or page.head is None:
            return None
        self.end = page.head.end_seq if self.end is None else self.end
        return Burst(page.events, after, page.reached)

    async def _read(self, after: int) -> StreamSlice | None:
        """Read a page of the table; None if the stream was deleted or replaced."""
        ns, stream, joined = self.key
        # Offers may arrive during the read.
        existed, last = self._existed, self.last
        wanted = (stream, after, PAGE_EVENTS, joined, PAGE_BYTES, self._resolve)
        page = await self._storage.read(read, *wanted, ns=ns)
        is_gone = existed if page.head is None else page.head.last_seq < (last or 0)
        if is_gone:
            self.gone = True
            self._stop()
            return None
        return page

    def _begin(self, seq: int) -> None:
        if self.last is None:
            self.began = self.last = seq
            self._wake()

    def _advance(self, burst: Burst, end: int | None) -> None:
        """Keep the new part of a burst, if no event before it is missing."""
        self._existed = True
        self.end = end if self.end is None else self.end
        assert self.last is not None
        if burst.after <= self.last < burst.last:
            fresh = burst.beyond(self.last)
            self.last = fresh.last
            self._keep(fresh)
        self._wake()

    def _keep(self, burst: Burst) -> None:
        self._kept.append(burst)
        self._kept_size += burst.size
        while len(self._kept) > KEPT_BURSTS or (self._kept_size > KEPT_SIZE and len(self._kept) > 1):
            self._kept_size -= self._kept.popleft().size

    def _wake(self) -> None:
        for follower in self._followers:
            follower.wake()

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._stop()

    def _stop(self) -> None:
        self._listening.cancel()
        self._watch.close()
        self._forget(self)
        self._wake()


class Follower:
    """One reader of a stream. It returns every event after its position once and in order.

    It belongs to the event loop that created it; one task at a time may wait for it.
    """

    def __init__(self, tail: Tail, after: int | None) -> None:
        self._tail = tail
        self._place = tail.last if after is None else after
        self._waiter: asyncio.Future[bool] | None = None
        self._closed = False
        tail.join(self)

    async def started(self) -> None:
        """Wait for the start position; later events are not missed."""
        while self._tail.last is None and not self._closed:
            if self._tail.error is not None:
                raise self._tail.error
            await self._wait(None)

    async def next(self, timeout: float | None = None) -> Burst | None:
        """Return the next events: empty after `timeout` seconds, None at the stream's end."""
        clock = self._tail.loop.time
        deadline = None if timeout is None else clock() + timeout
        while not self._closed:
            burst = await self._find()
            if burst is not None:
                self._place = burst.last
                if burst.events:
                    return burst
            elif self._is_over():
                self.close()
            elif not await self._wait(None if deadline is None else max(deadline - clock(), 0.0)):
                return NOTHING
        return None

    @property
    def place(self) -> int | None:
        """Number of the last event already returned; None until `started`."""
        return self._tail.began if self._place is None else self._place

    def take(self) -> Burst | None:
        """Return the next events if the tail has kept them; None otherwise, even if the table has more."""
        last, place = self._tail.last, self._place
        if self._closed or place is None or last is None or last <= place:
            return None
        burst = self._tail.find(place)
        if burst is not None:
            self._place = burst.last
        return burst

    async def _find(self) -> Burst | None:
        """Return the next events, kept or read from the table."""
        tail = self._tail
        if self._place is None:
            self._place = tail.began
        if self._place is None or tail.last is None or tail.last <= self._place:
            return None
        return tail.find(self._place) or await tail.page(self._place)

    def _is_over(self) -> bool:
        if self._tail.error is not None:
            raise self._tail.error
        return self._place is not None and self._tail.is_over(self._place)

    async def _wait(self, timeout: float | None) -> bool:
        """Wait for a wake-up; False after the timeout."""
        loop = self._tail.loop
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        alarm = None if timeout is None else loop.call_later(timeout, _settle, waiter, False)
        try:
            return await waiter
        finally:
            self._waiter = None
            if alarm is not None:
                alarm.cancel()

    def wake(self) -> None:
        if self._waiter is not None:
            _settle(self._waiter, True)

    def close(self) -> None:
        """Stop reading; a waiting reader gets None."""
        if not self._closed:
            self._closed = True
            self._tail.leave(self)
            self.wake()

    async def bursts(self) -> AsyncGenerator[Burst, None]:
        """Yield the events burst by burst until the stream ends, then close."""
        try:
            while (burst := await self.next(None)) is not None:
                yield burst
        finally:
            self.close()


def _settle(waiter: asyncio.Future[bool], answer: bool) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
