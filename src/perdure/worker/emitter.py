"""Sending of a run's events and its graph's steps to the queue, in order and in batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from perdure.checkpoints.records import GraphChanges, GraphPut, GraphState, GraphSteps, GraphWrite
from perdure.kernel.errors import Fenced, PerdureError
from perdure.kernel.retry import retry_until
from perdure.runs.queue import RunQueue
from perdure.streams.model import NewEvent
from perdure.threads.work import Lease
from perdure.worker.waiters import Waiters

MAX_EVENTS = 1000
MAX_BYTES = 1 << 20
LINGER_SECONDS = 0.002
"""Delay of a first event, so that a short run writes everything in one transaction."""
CROWDED_SECONDS = 0.02
"""Delay while the worker also executes other runs."""
UNREAD_TIMES = 4
"""Number of further delays while the events of the run have no readers."""

ROW = 200
"""Approximate size of a row without its value, in bytes."""


class Emitter:
    """Takes events from any thread and appends them from the worker's loop, one batch at a time."""

    def __init__(
        self,
        queue: RunQueue,
        lease: Lease,
        still_owned: Callable[[], bool],
        *,
        lease_over: Callable[[], bool] = lambda: False,
        last: int | None = None,
        active: Callable[[], int] = lambda: 1,
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.sending = asyncio.Lock()
        """Locked during writes of this run, to keep the order."""
        self.failure: PerdureError | None = None
        """Error after which nothing more can be written."""
        self._queue = queue
        self._lease = lease
        self._still_owned = still_owned
        self._lease_over = lease_over
        self._active = active
        self._limits = (max_events, max_bytes)
        self._control = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._events: list[NewEvent] = []
        self._steps: list[GraphSteps] = []
        self._event_bytes = 0
        self._step_bytes = 0
        self._waiters = Waiters()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._closed = False
        self._last = last

    @property
    def full(self) -> bool:
        return len(self._events) >= self._limits[0] or self._event_bytes + self._step_bytes >= self._limits[1]

    @property
    def last(self) -> int | None:
        """Number of the last event known to be stored."""
        return self._last

    @property
    def is_idle(self) -> bool:
        """True if all events are stored."""
        return not self._events and not self.sending.locked()

    def put(self, event: NewEvent) -> None:
        """Add an event, from any thread. It is sent after a short delay."""
        with self._lock:
            self._events.append(event)
            self._event_bytes += len(event.body) + len(event.event)
            if self._scheduled:
                return
            self._scheduled = True
        self._control.call_soon_threadsafe(self._schedule)

    def begin(self, event: NewEvent) -> None:
        """Add the first event, in the worker's loop. Send it at once if it has readers."""
        self._events.append(event)
        self._event_bytes += len(event.body) + len(event.event)
        self._scheduled = True
        if self._queue.is_followed(self._lease):
            self._begin()
        else:
            self._schedule()

    def put_steps(self, steps: GraphSteps) -> None:
        """Add steps of a graph, from any thread. They are written before or with the events after them."""
        with self._lock:
            self._steps.append(steps)
            self._step_bytes += estimate_size(steps)
            if self._scheduled:
                return
            self._scheduled = True
        self._control.call_soon_threadsafe(self._schedule)

    async def wait_for_space(self) -> None:
        """Wait, in any loop, for space, or until the emitter has failed or is closed."""
        await self._waiters.wait_while(lambda: self.full and self.failure is None and not self._closed)

    def take(self) -> list[NewEvent]:
        """Remove and return all pending events. The caller has locked `sending` and writes them."""
        with self._lock:
            events, self._events, self._event_bytes = self._events, [], 0
        self._waiters.wake()
        return events

    def take_steps(self) -> GraphSteps | None:
        """Remove and return all pending steps, under the same lock."""
        with self._lock:
            steps, self._steps, self._step_bytes = self._steps, [], 0
        self._waiters.wake()
        return joined(steps) if steps else None

    def restore(self, events: Sequence[NewEvent]) -> None:
        """Put back events that were taken but not written."""
        with self._lock:
            self._events[:0] = events
            self._event_bytes += sum(len(event.body) + len(event.event) for event in events)

    def fail(self, error: PerdureError) -> None:
        """Refuse further writes with this error, unless there is an earlier one."""
        self.failure = self.failure or error
        self._waiters.wake()

    def close(self) -> None:
        """Stop sending."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            self._flushing.cancel()
        self._waiters.wake()

    async def drain(self) -> None:
        """Send everything that is pending now."""
        async with self.sending:
            # Take events first: none may be written before the steps that led to it.
            events, steps = self.take(), self.take_steps()
            if (events or steps) and self.failure is None:
                await self._append(events, steps)

    def _schedule(self) -> None:
        if self._closed:
            return
        if self._active() <= 1:
            self._timer = self._control.call_later(LINGER_SECONDS, self._begin)
        else:
            self._timer = self._control.call_later(CROWDED_SECONDS, self._look, UNREAD_TIMES)

    def _look(self, times: int) -> None:
        """Begin, unless the events have no readers: a run that ends soon writes everything with its end."""
        if times and not self.full and self._queue.is_followed(self._lease) is False:
            self._timer = self._control.call_later(CROWDED_SECONDS, self._look, times - 1)
        else:
            self._begin()

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
        """Count events that were written with another call."""
        self._last = None if self._last is None else self._last + count

    async def _append(self, events: Sequence[NewEvent], steps: GraphSteps | None) -> None:
        """Write a batch. If the last number is known, the call is idempotent and is retried."""

        def send() -> Coroutine[Any, Any, int]:
            if self._lease_over():
                raise Fenced(f"the lease of run {self._lease.run_id} is over")
            if steps is None:
                return self._queue.append(self._lease, events, self._last)
            return self._queue.record(self._lease, steps, events, self._last)

        try:
            self._last = await retry_until(
                send,
                what=f"events of run {self._lease.run_id}",
                still_owned=self._still_owned,
                idempotent=self._last is not None,
            )
        except PerdureError as error:
            if isinstance(error, Fenced) and steps is not None:
                # The attempt of a cancelled run is fenced, but may still store its steps at the end.
                with self._lock:
                    self._steps.insert(0, steps)
                    self._step_bytes += estimate_size(steps)
            self.fail(error)


# --- batches of steps -------------------------------------------------------------------------------------


def estimate_size(steps: GraphSteps) -> int:
    """Estimate the size of steps in bytes."""
    size = 0
    for put in steps.changes.puts:
        size += ROW * (1 + len(put.pieces))
        for piece in put.pieces:
            if piece.value is not None:
                size += len(piece.value[1])
    for write in steps.changes.writes:
        size += ROW + len(write.value[1])
    for state in steps.states:
        size += ROW + len(state.body or "")
    return size


def joined(batches: Sequence[GraphSteps]) -> GraphSteps:
    """Join batches in order. Of several versions of a state, keep the last one."""
    if len(batches) == 1:
        return batches[0]
    puts: list[GraphPut] = []
    writes: list[GraphWrite] = []
    states: dict[str, GraphState] = {}
    for steps in batches:
        puts += steps.changes.puts
        writes += steps.changes.writes
        for state in steps.states:
            before = states.get(state.checkpoint_id)
            states[state.checkpoint_id] = state if before is None else _updated(before, state)
    return GraphSteps(changes=GraphChanges(puts=puts, writes=writes), states=list(states.values()))


def _updated(before: GraphState, state: GraphState) -> GraphState:
    return msgspec.structs.replace(state, again=before.again, parent_id=before.parent_id)


def keep_last(steps: GraphSteps) -> GraphSteps:
    """Keep only the last state, with its values, for a thread from which no run continues."""
    if not steps.states or steps.states[-1].body is None:
        return steps
    return GraphSteps(states=[msgspec.structs.replace(steps.states[-1], whole=True)])
