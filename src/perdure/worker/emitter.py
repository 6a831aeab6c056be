"""Sending of a run's events and its graph's steps to the queue, in order and in batches.

A new attempt executes the agent from its start, and gets the results of saved steps. Events that a task emits
before it asks for a saved step were stored no later than that step. So events are held until every saved step
was asked for, and each saved step drops the events before it. If the agent does something different,
the held events are released, so that no event of a changed agent is lost. After the last saved step, events
equal to events of earlier attempts are dropped, up to the first different event.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from perdure.agents.context import Branch
from perdure.checkpoints.records import GraphChanges, GraphPut, GraphState, GraphSteps, GraphWrite
from perdure.kernel.errors import Fenced, PerdureError
from perdure.kernel.retry import retry_until
from perdure.runs.queue import RunQueue
from perdure.streams.model import NewEvent
from perdure.threads.work import Lease

# --- waiting ----------------------------------------------------------------------------------------------


class Waiters:
    """Wakes waiting tasks. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def wait_while(self, condition: Callable[[], bool]) -> None:
        """Wait, in any loop, while a condition is true. Each wake checks it again."""
        loop = asyncio.get_running_loop()
        while condition():
            future: asyncio.Future[None] = loop.create_future()
            with self._lock:
                if not condition():
                    return
                self._waiting.append((loop, future))
            await future

    def wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# --- replayed events --------------------------------------------------------------------------------------


MAX_HELD = 1000
MAX_HELD_BYTES = 1 << 20
"""Limits of the number and size of held events. Beyond them, the oldest are dropped."""


class Held(NamedTuple):
    """Event, with the branch of the agent that emitted it."""

    event: NewEvent
    branch: Branch


class Replay:
    """Replay of one attempt, used in the agent's loop, and after the agent's end in the worker's loop."""

    def __init__(self, saved_at: Mapping[str, int], last_seq: int) -> None:
        self.after = max(saved_at.values(), default=last_seq)
        """Number of the last event before the last saved step."""
        self.limit = min(last_seq - self.after, MAX_HELD)
        """Number of later events to compare."""
        self._expected = set(saved_at)
        self._held: deque[Held] = deque()
        self._bytes = 0
        self._following: Counter[NewEvent] = Counter()

    def begin(self, following: Sequence[NewEvent]) -> None:
        """Set the events in the stream after the last saved step."""
        self._following = Counter(following)

    @property
    def expects_steps(self) -> bool:
        """True if there are saved steps that the agent has not asked for."""
        return bool(self._expected)

    @property
    def is_active(self) -> bool:
        """True if the stream may already have the next event."""
        return bool(self._expected or self._following)

    def is_new(self, event: NewEvent, branch: Branch = ()) -> bool:
        """Return whether to append an event now; otherwise it is held or dropped."""
        if self._expected:
            self._hold(Held(event, branch))
            return False
        if self._is_there(event):
            return False
        self._following.clear()
        return True

    def reach(self, step: str, branch: Branch = ()) -> list[NewEvent]:
        """Drop the events before a saved step. At the last one, return the events of other branches."""
        self._expected.discard(step)
        kept = [held for held in self._held if held.branch != branch[: len(held.branch)]]
        self._held, self._bytes = deque(kept), sum(len(held.event.body) for held in kept)
        if self._expected:
            return []
        return [event for event in self._release() if not self._is_there(event)]

    def end(self) -> list[NewEvent]:
        """End the replay: all later events are new. Return the held events."""
        self._expected.clear()
        self._following.clear()
        return self._release()

    def _is_there(self, event: NewEvent) -> bool:
        """Return whether an earlier attempt emitted an equal event after its last saved step, once each."""
        if not self._following[event]:
            return False
        self._following[event] -= 1
        return True

    def _hold(self, held: Held) -> None:
        while len(self._held) >= MAX_HELD or self._bytes >= MAX_HELD_BYTES:
            self._bytes -= len(self._held.popleft().event.body)
        self._held.append(held)
        self._bytes += len(held.event.body)

    def _release(self) -> list[NewEvent]:
        events = [held.event for held in self._held]
        self._held.clear()
        self._bytes = 0
        return events


# --- sending ----------------------------------------------------------------------------------------------


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
        """Add steps of a graph, from any thread. Steps are written before or with later events."""
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
        """Refuse further writes with this error, unless an earlier error is set."""
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
    """Join batches in order. Of several versions of a state, keep the last version."""
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
    """Keep only the last state, with its values. No later run continues from the thread."""
    if not steps.states or steps.states[-1].body is None:
        return steps
    return GraphSteps(states=[msgspec.structs.replace(steps.states[-1], whole=True)])
