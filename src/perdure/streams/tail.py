"""The live end of a stream: read once in each event loop, however many follow it there.

A tail keeps the latest bursts, as many as it may; a follower has but a place of its own. One that is slow
falls out of what is kept, and reads the table until it has caught up: it holds up nobody and costs no memory.
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
"""So long a hint waits for the offer that may bring what it tells of."""
QUIET_SECONDS = 0.1
"""While offers come, hints lead to a reading no more often than this."""
BEHIND_ALL = 2**62
"""A place after which there is nothing: who reads there gets the head alone."""


class StreamKey(NamedTuple):
    """Which stream a tail reads."""

    ns: int
    stream: str
    joined: bool


class Tail:
    """The end of one stream for the followers of one event loop, which alone touches it."""

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
        """Where the stream was when it was first seen."""
        self.last = self.began
        """Everything up to here is committed, and followers can have it."""
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

    # --- what others tell it

    def tell(self, function: Callable[..., None], *args: Any) -> None:
        """Call one of the tail's own functions in its loop, from any thread."""
        if _running_loop() is self.loop:
            function(*args)
            return
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # A loop that has closed has nobody left to tell.
            self._forget(self)

    def take(self, burst: Burst, end: int | None) -> None:
        """An offer: a burst that was committed a moment ago."""
        if self.gone or self.error is not None:
            return
        self._offered = self.loop.time()
        self._begin(burst.after)
        self._advance(burst, end)
        if self.last is not None and burst.last > self.last:
            self.stir()

    def stir(self) -> None:
        """Look at the table, now or after the look that is under way."""
        self._again = True
        if self._reading is None or self._reading.done():
            self._reading = self.loop.create_task(self._read_on())

    def differs(self, head: Head | None) -> bool:
        """Whether the table has something new; asked from any thread."""
        if head is None:
            return self._existed or self.last is None
        return head.last_seq != self.last or head.end_seq != self.end

    def join(self, follower: Follower) -> None:
        self._followers.add(follower)

    def leave(self, follower: Follower) -> None:
        """The last one to leave takes the tail along."""
        self._followers.discard(follower)
        if not self._followers:
            self._stop()

    # --- what followers ask it

    def find(self, seq: int) -> Burst | None:
        """The kept burst that goes on after `seq`."""
        for burst in reversed(self._kept):
            if burst.after <= seq:
                return burst.beyond(seq) if burst.last > seq else None
        return None

    async def page(self, after: int) -> Burst | None:
        """What the table has after a place, or None if it is gone; who asks at the same time shares it."""
        task = self._pages.get(after)
        if task is None:
            task = self._pages[after] = self.loop.create_task(self._read_page(after))
            task.add_done_callback(lambda _: self._pages.pop(after))
        # One who goes away leaves the others theirs.
        found = await asyncio.shield(task)
        if isinstance(found, Exception):
            raise found
        return found

    def is_over(self, seq: int) -> bool:
        return self.gone or (self.end is not None and seq >= self.end)

    # --- how it keeps up

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
        except Exception as error:  # noqa: BLE001 - it is the followers' answer
            self._fail(error)

    async def _catch_up(self) -> None:
        """Read everything after `last`; at first, find out where that is."""
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
        except Exception as error:  # noqa: BLE001 - it is raised where the page was asked for
            return error
        if page is None or page.head is None:
            return None
        self.end = page.head.end_seq if self.end is None else self.end
        return Burst(page.events, after, page.reached)

    async def _read(self, after: int) -> StreamSlice | None:
        """A page of the table; None once the stream that was there is there no more, or another is."""
        ns, stream, joined = self.key
        # What is learnt meanwhile may be newer than what is read.
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
        """Keep what of a burst is new, if nothing is missing before it."""
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
    """One reader of a stream. It gets every event after its place once, in order, then and from now on.

    It belongs to the event loop that made it, and one task at a time may wait for it.
    """

    def __init__(self, tail: Tail, after: int | None) -> None:
        self._tail = tail
        self._place = tail.last if after is None else after
        self._waiter: asyncio.Future[bool] | None = None
        self._closed = False
        tail.join(self)

    async def started(self) -> None:
        """Wait until its place is known: what is appended from then on is not missed."""
        while self._tail.last is None and not self._closed:
            if self._tail.error is not None:
                raise self._tail.error
            await self._wait(None)

    async def next(self, timeout: float | None = None) -> Burst | None:
        """The next events; none of them when `timeout` seconds have passed, None at the stream's end."""
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
        """The number of the last event before what it gets next; None until it has `started`."""
        return self._tail.began if self._place is None else self._place

    def take(self) -> Burst | None:
        """The next events if they are at hand; None says nothing about whether there are any."""
        last, place = self._tail.last, self._place
        if self._closed or place is None or last is None or last <= place:
            return None
        burst = self._tail.find(place)
        if burst is not None:
            self._place = burst.last
        return burst

    async def _find(self) -> Burst | None:
        """What comes next, from what is kept or from the table."""
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
        """Wait to be woken; False when the time is up."""
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
        """Read no more; whoever waits for the next events gets None."""
        if not self._closed:
            self._closed = True
            self._tail.leave(self)
            self.wake()

    async def bursts(self) -> AsyncGenerator[Burst, None]:
        """The events burst by burst, until the stream ends; then it is closed."""
        try:
            while (burst := await self.next(None)) is not None:
                yield burst
        finally:
            self.close()


def _settle(waiter: asyncio.Future[bool], answer: bool) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
