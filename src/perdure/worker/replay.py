"""Detection of events of a new attempt that an earlier attempt has already emitted.

A new attempt executes the agent from its start, and gets the results of saved steps. Events that a task emits
before it asks for a saved step were stored no later than that step. So events are held until every saved step
was asked for, and each saved step drops the events that led to it. If the agent does something different,
the held events are released, so that no event of a changed agent is lost. After the last saved step, events
are dropped that equal those of earlier attempts, up to the first different one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.agents.context import Branch
from perdure.streams.model import NewEvent

MAX_HELD = 1000
MAX_BYTES = 1 << 20
"""Limits of the number and size of held events. Beyond them, the oldest are dropped."""


class Held(NamedTuple):
    """Event, with the branch of the agent that emitted it."""

    event: NewEvent
    branch: Branch


class Replay:
    """Replay of one attempt, used in the agent's loop, and in the worker's after the agent's end."""

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
        """Drop what led to a saved step. At the last one, return what other branches emitted."""
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
        while len(self._held) >= MAX_HELD or self._bytes >= MAX_BYTES:
            self._bytes -= len(self._held.popleft().event.body)
        self._held.append(held)
        self._bytes += len(held.event.body)

    def _release(self) -> list[NewEvent]:
        events = [held.event for held in self._held]
        self._held.clear()
        self._bytes = 0
        return events
