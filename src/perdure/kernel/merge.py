"""Merging of concurrent calls into lists.

A batch is whatever queued while the last batch of the same kind ran; nothing ever waits on a timer. Calls
merge only if their operation, namespace and shared arguments are equal.
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
BATCH_BYTES = 1 << 20
OVERLAP_ITEMS = 64
"""So many waiting calls for each running batch make another worth while."""

Batch = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
"""Runs a list of items and answers each with its result, or with an exception for that item alone."""


class _Lane:
    """The calls of one kind: what waits, and how many batches run."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[tuple[asyncio.Future[Any], Any, int]] = deque()
        self.running = 0

    def take(self, batches: int) -> list[tuple[asyncio.Future[Any], Any, int]]:
        """The next batch, a fair share if several run at once; who has gone takes their item along."""
        limit = min(BATCH_ITEMS, max(OVERLAP_ITEMS, -(-len(self.waiting) // batches)))
        batch: list[tuple[asyncio.Future[Any], Any, int]] = []
        size = 0
        while self.waiting and len(batch) < limit:
            size += self.waiting[0][2]
            if batch and size > BATCH_BYTES:
                break
            entry = self.waiting.popleft()
            if not entry[0].cancelled():
                batch.append(entry)
        return batch


class Merger:
    """Merges calls, separately in each event loop; of each kind up to `batches` run at once."""

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
        size: int = 0,
        undelivered: Callable[[Any], None] | None = None,
    ) -> asyncio.Future[Any]:
        """Add `item` to the next batch of `key`.

        `undelivered` gets the result of a call whose caller went away while its batch ran.
        """
        refuse_nested()
        loop = asyncio.get_running_loop()
        lanes = self._lanes_of(loop)
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = _Lane()
        future: asyncio.Future[Any] = loop.create_future()
        lane.waiting.append((future, item, size))
        if lane.running < self._batches and len(lane.waiting) > lane.running * OVERLAP_ITEMS:
            lane.running += 1
            task = loop.create_task(self._drain(lanes, key, lane, batch, undelivered))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return future

    def _lanes_of(self, loop: asyncio.AbstractEventLoop) -> dict[Hashable, _Lane]:
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
        undelivered: Callable[[Any], None] | None,
    ) -> None:
        futures: list[asyncio.Future[Any]] = []
        try:
            while entries := lane.take(self._batches):
                futures = [future for future, _, _ in entries]
                results = await _run(batch, [item for _, item, _ in entries])
                for future, result in zip(futures, results, strict=True):
                    _settle(future, result, undelivered)
        finally:
            lane.running -= 1
            for future in futures:
                future.cancel()
            if not lane.running:
                lanes.pop(key, None)
                for future, _, _ in lane.waiting:
                    future.cancel()


async def _run(batch: Batch, items: list[Any]) -> Sequence[Any]:
    """Run a batch; after an unexpected error run each item alone, so that one never fails its neighbours."""
    try:
        return await batch(items)
    except StorageError as error:
        return [error] * len(items)
    except Exception as error:  # noqa: BLE001 - the error is each item's own answer
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
