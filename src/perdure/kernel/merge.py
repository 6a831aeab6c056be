"""Merging of concurrent calls into batches.

A batch holds the calls queued while the previous batch of the same kind ran, and all calls of the next turns
of the event loop. Calls wait for a timer only if their kind has a time to gather. Calls merge only if their
operation, namespace and shared arguments are equal.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

from perdure.kernel.errors import StorageError
from perdure.kernel.storage.port import refuse_nested

BATCH_ITEMS = 256
BATCH_ROWS = 1000
BATCH_BYTES = 1 << 20
OVERLAP_ROWS = 64
"""Number of waiting rows that starts a second batch while one runs."""

TURNS = 2
"""Turns of the event loop that a batch waits for calls from other sockets."""

GATHER_TIMES = 5
"""Maximum number of gather times that a batch waits for the callers answered last."""

Batch = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
"""Function that runs a list of items and returns a result or an exception for each."""

Entry = tuple[asyncio.Future[Any], Any, int, int]
"""The caller's future, the item, and its size in rows and bytes."""


class _Lane:
    """Calls of one kind: waiting entries and running batches; a `starting` batch has no entries yet."""

    __slots__ = ("expected", "filled", "rows", "running", "starting", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Entry] = deque()
        self.rows = 0
        self.running = 0
        self.starting = False
        self.expected = 0
        """Number of callers that a gathering batch waits for, on `filled`."""
        self.filled: asyncio.Future[None] | None = None

    def add(self, entry: Entry) -> None:
        self.waiting.append(entry)
        self.rows += entry[2]
        if self.filled is not None and self.is_filled and not self.filled.done():
            self.filled.set_result(None)

    @property
    def is_filled(self) -> bool:
        """True if a batch needs to gather no more."""
        return len(self.waiting) >= self.expected or self.rows >= OVERLAP_ROWS

    async def gather(self, seconds: float, callers: int) -> None:
        """Wait until as many callers call again as were answered last, at most a few times `seconds`.

        Only one batch gathers at a time; another batch that ends meanwhile does not wait.
        """
        if self.filled is not None:
            return
        self.expected = callers
        for _ in range(GATHER_TIMES):
            if self.is_filled:
                break
            self.filled = asyncio.get_running_loop().create_future()
            await asyncio.wait([self.filled], timeout=seconds)
            self.filled = None
            if not self.waiting:
                break

    def may_start(self, batches: int) -> bool:
        """Return whether to start a batch: at once if none runs, otherwise only if enough rows wait."""
        return not self.running or (self.running < batches and self.rows >= OVERLAP_ROWS)

    def take(self) -> list[Entry]:
        """Take the next batch, without the items of cancelled callers."""
        self.starting = False
        batch: list[Entry] = []
        rows = size = 0
        while self.waiting and len(batch) < BATCH_ITEMS:
            entry = self.waiting[0]
            rows += entry[2]
            size += entry[3]
            if batch and (rows > BATCH_ROWS or size > BATCH_BYTES):
                break
            self.rows -= entry[2]
            del self.waiting[0]
            if not entry[0].cancelled():
                batch.append(entry)
        return batch


class Merger:
    """Merges calls, separately in each event loop, and runs up to `batches` of each kind at once."""

    def __init__(self, batches: int = 1) -> None:
        self._batches = batches
        self._lanes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Lane]] = (
            weakref.WeakKeyDictionary()
        )
        self._last: tuple[weakref.ref[asyncio.AbstractEventLoop] | None, dict[Hashable, _Lane]] = (None, {})
        self._tasks: set[asyncio.Task[None]] = set()

    def call(
        self,
        key: Hashable,
        batch: Batch,
        item: Any,
        *,
        rows: int = 1,
        size: int = 0,
        gather: float = 0.0,
        undelivered: Callable[[Any], None] | None = None,
    ) -> asyncio.Future[Any]:
        """Add `item`, with its size in rows and bytes, to the next batch of `key`.

        While there are many callers, a small batch waits `gather` seconds for more, and up to 5 times as long
        until all callers answered last are back. `undelivered` receives the result of a call whose caller was
        cancelled while its batch ran.
        """
        refuse_nested()
        loop = asyncio.get_running_loop()
        lanes = self._get_lanes(loop)
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = _Lane()
        future: asyncio.Future[Any] = loop.create_future()
        lane.add((future, item, rows, size))
        if not lane.starting and lane.may_start(self._batches):
            lane.running += 1
            lane.starting = True
            task = loop.create_task(self._drain(lanes, key, lane, batch, gather, undelivered))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return future

    def _get_lanes(self, loop: asyncio.AbstractEventLoop) -> dict[Hashable, _Lane]:
        last, lanes = self._last
        if last is None or last() is not loop:
            lanes = self._lanes.setdefault(loop, {})
            self._last = (weakref.ref(loop), lanes)
        return lanes

    async def _drain(
        self,
        lanes: dict[Hashable, _Lane],
        key: Hashable,
        lane: _Lane,
        batch: Batch,
        gather: float,
        undelivered: Callable[[Any], None] | None,
    ) -> None:
        futures: list[asyncio.Future[Any]] = []
        try:
            while True:
                if gather and len(futures) > 1:
                    await lane.gather(gather, len(futures))
                for _ in range(TURNS if lane.waiting else 0):
                    await asyncio.sleep(0)
                entries = lane.take()
                if not entries:
                    break
                futures = [entry[0] for entry in entries]
                results = await _run(batch, [entry[1] for entry in entries])
                for future, result in zip(futures, results, strict=True):
                    _settle(future, result, undelivered)
        finally:
            lane.running -= 1
            for future in futures:
                future.cancel()
            if not lane.running:
                lanes.pop(key, None)
                for entry in lane.waiting:
                    entry[0].cancel()


async def _run(batch: Batch, items: list[Any]) -> Sequence[Any]:
    """Run a batch; after an unexpected error run each item by itself, so that items fail separately."""
    try:
        return await batch(items)
    except StorageError as error:
        return [error] * len(items)
    except Exception as error:  # noqa: BLE001 - each item gets its own error
        if len(items) == 1:
            return [error]
    return [(await _run(batch, [item]))[0] for item in items]


def _settle(future: asyncio.Future[Any], result: Any, undelivered: Callable[[Any], None] | None) -> None:
    if future.cancelled():
        if undelivered is not None and not isinstance(result, BaseException):
            undelivered(result)
    elif isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
