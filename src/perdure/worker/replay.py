"""Decides which events of a new attempt are in the stream already, because an earlier attempt emitted them.

A new attempt executes the agent from its start, and gets the results of saved steps. What a task of the agent
emits before it asks for a step that an earlier attempt saved was emitted before, and was stored no later than
that step. So events are held until every saved step was asked for; each drops what led to it. If the agent
does something else instead, what is held is released, so that no event of an agent that has changed is lost.
After the last saved step, events are dropped that equal what earlier attempts emitted there, up to the first
that is different.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.agents.context import Branch
from perdure.streams.model import NewEvent

MAX_HELD = 1000
MAX_BYTES = 1 << 20
"""How many events are held, and how many bytes of them; of more, the oldest are dropped."""


class Held(NamedTuple):
    """An event, and the branch of the agent that emitted it."""

    event: NewEvent
    branch: Branch


class Replay:
    """The replay of one attempt. Used in the agent's loop; after the agent's end in the worker's."""

    def __init__(self, saved_at: Mapping[str, int], last_seq: int) -> None:
        self.after = max(saved_at.values(), default=last_seq)
        """The number of the last event before the last saved step."""
        self.limit = min(last_seq - self.after, MAX_HELD)
        """How many events after that are compared."""
        self._expected = set(saved_at)
        self._held: deque[Held] = deque()
        self._bytes = 0
        self._following: Counter[NewEvent] = Counter()

    def begin(self, following: Sequence[NewEvent]) -> None:
        """Set the events that the stream has after the last saved step."""
        self._following = Counter(following)

    @property
    def expects_steps(self) -> bool:
        """Whether there are saved steps that the agent has not asked for yet."""
        return bool(self._expected)

    @property
    def is_active(self) -> bool:
        """Whether the stream may have the next event already."""
        return bool(self._expected or self._following)

    def is_new(self, event: NewEvent, branch: Branch = ()) -> bool:
        """Whether an event is to be appended now; otherwise it is held or dropped."""
        if self._expected:
            self._hold(Held(event, branch))
            return False
        if self._is_there(event):
            return False
        self._following.clear()
        return True

    def reach(self, step: str, branch: Branch = ()) -> list[NewEvent]:
        """Drop what led to a saved step; at the last one, returns what was held of other branches."""
        self._expected.discard(step)
        kept = [each for each in self._held if each.branch != branch[: len(each.branch)]]
        self._held, self._bytes = deque(kept), sum(len(each.event.body) for each in kept)
        if self._expected:
            return []
        return [event for event in self._release() if not self._is_there(event)]

    def end(self) -> list[NewEvent]:
        """Stop: everything from now on is new. Returns the events that were held."""
        self._expected.clear()
        self._following.clear()
        return self._release()

    def _is_there(self, event: NewEvent) -> bool:
        """Whether an earlier attempt emitted this after its last saved step; each counts once."""
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
        held = [each.event for each in self._held]
        self._held.clear()
        self._bytes = 0
        return held
