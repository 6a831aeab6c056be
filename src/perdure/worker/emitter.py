"""What a run tells and what its graph keeps, on the way: in order, in batches, and never too much at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from perdure.graphs.records import GraphSteps
from perdure.kernel.errors import Fenced, PerdureError
from perdure.kernel.retry import retry_until
from perdure.streams.model import NewEvent
from perdure.threads.queue import RunQueue
from perdure.threads.work import Lease
from perdure.worker.graph_steps import joined, size_of

MAX_EVENTS = 1000
MAX_BYTES = 1 << 20
LINGER_SECONDS = 0.002
"""A first event waits so long for company: a run that ends at once tells everything in one transaction."""
CROWDED_SECONDS = 0.02
"""So long it waits where other runs are at work as well, and each takes its time anyway."""

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Emitter:
    """Takes events from any thread and appends them from the worker's loop, one batch at a time."""

    def __init__(
        self,
        queue: RunQueue,
        held: Lease,
        still_owned: Callable[[], bool],
        *,
        last: int | None = None,
        active: Callable[[], int] = lambda: 1,
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.sending = asyncio.Lock()
        """Held while something of this run is being written, so that the order is kept."""
        self.failure: PerdureError | None = None
        """Why nothing more can be written."""
        self._queue = queue
        self._held = held
        self._worthwhile = still_owned
        self._active = active
        self._limits = (max_events, max_bytes)
        self._control = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._events: list[NewEvent] = []
        self._steps: list[GraphSteps] = []
        self._bytes = 0
        self._waiters: list[_Waiter] = []
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._closed = False
        self._last = last

    @property
    def full(self) -> bool:
        return len(self._events) >= self._limits[0] or self._bytes >= self._limits[1]

    def put(self, event: NewEvent) -> None:
        """Add an event, from any thread; it is sent soon."""
        with self._lock:
            self._events.append(event)
            self._bytes += len(event.body) + len(event.event)
            if self._scheduled:
                return
            self._scheduled = True
        self._control.call_soon_threadsafe(self._schedule)

    def put_steps(self, steps: GraphSteps) -> None:
        """Add what a graph has done, from any thread; it is written with the events before it, or earlier."""
        with self._lock:
            self._steps.append(steps)
            self._bytes += size_of(steps)
            if self._scheduled:
                return
            self._scheduled = True
        self._control.call_soon_threadsafe(self._schedule)

    async def room(self) -> None:
        """Wait, in any loop, until there is room again or nothing is taken any more."""
        loop = asyncio.get_running_loop()
        while self.full and self.failure is None and not self._closed:
            future: asyncio.Future[None] = loop.create_future()
            with self._lock:
                if not self.full:
                    return
                self._waiters.append((loop, future))
            await future

    def take(self) -> list[NewEvent]:
        """Everything that waits, for whoever holds `sending` and writes it along."""
        with self._lock:
            events, self._events = self._events, []
            self._bytes = sum(map(size_of, self._steps))
        self._wake()
        return events

    def take_steps(self) -> GraphSteps | None:
        """What graphs have done, for the same."""
        with self._lock:
            steps, self._steps = self._steps, []
            self._bytes = sum(len(event.body) + len(event.event) for event in self._events)
        self._wake()
        return joined(steps) if steps else None

    def restore(self, events: Sequence[NewEvent]) -> None:
        """Put back what was taken and not written."""
        with self._lock:
            self._events[:0] = events
            self._bytes += sum(len(event.body) + len(event.event) for event in events)

    def fail(self, error: PerdureError) -> None:
        """Nothing more can be written; the first reason counts."""
        self.failure = self.failure or error
        self._wake()

    def close(self) -> None:
        """Send nothing more by itself."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            self._flushing.cancel()
        self._wake()

    async def drain(self) -> None:
        """Send what waits, now."""
        async with self.sending:
            # Nothing is told before what led to it is kept.
            events, steps = self.take(), self.take_steps()
            if (events or steps) and self.failure is None:
                await self._append(events, steps)

    def _wake(self) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future)

    def _schedule(self) -> None:
        if not self._closed:
            linger = LINGER_SECONDS if self._active() <= 1 else CROWDED_SECONDS
            self._timer = self._control.call_later(linger, self._begin)

    def _begin(self) -> None:
        self._flushing = self._control.create_task(self._flush())

    async def _flush(self) -> None:
        while True:
            async with self.sending:
                with self._lock:
                    if not (self._events or self._steps) or self.failure is not None:
                        self._scheduled = False
                        return
                events = self.take()
                await self._append(events, self.take_steps())
            if not self.full:
                self._schedule()
                return

    def wrote(self, count: int) -> None:
        """So many events were written along with something else."""
        self._last = None if self._last is None else self._last + count

    async def _append(self, events: Sequence[NewEvent], steps: GraphSteps | None) -> None:
        """Write a batch. Where it begins is known, so that it can be repeated."""

        def send() -> Coroutine[Any, Any, int]:
            if steps is None:
                return self._queue.append(self._held, events, self._last)
            return self._queue.record(self._held, steps, events, self._last)

        try:
            self._last = await retry_until(
                send,
                what=f"events of run {self._held.run_id}",
                still_owned=self._worthwhile,
                idempotent=self._last is not None,
            )
        except PerdureError as error:
            if isinstance(error, Fenced) and steps is not None:
                # A run that is cancelled is fenced, and may still say what it has done.
                with self._lock:
                    self._steps.insert(0, steps)
            self.fail(error)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
