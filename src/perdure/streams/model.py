"""What a stream holds. Everything here is pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import msgspec

from perdure.kernel.errors import InvalidInput

_ID = re.compile(r"^(?:\d{1,16}-)?(\d{1,18})$")


class NewEvent(msgspec.Struct, frozen=True):
    """An event to be appended; `body` is JSON, encoded."""

    event: str
    body: str


class Event(msgspec.Struct, frozen=True):
    """An event of a stream. `seq` counts from 1 without a gap; `ms` never runs backwards."""

    seq: int
    ms: int
    source: str
    """The stream that it was appended to: a run, also when read in the stream of the run's thread."""
    attempt: int
    event: str
    body: str

    @property
    def id(self) -> str:
        """What a reader gives back as `Last-Event-ID` to go on after this event."""
        return f"{self.ms}-{self.seq}"


def seq_of(event_id: str) -> int:
    """The place in the stream that a `Last-Event-ID` names; -1 and 0 are before its beginning."""
    if event_id in ("-1", "0"):
        return 0
    found = _ID.match(event_id)
    if found is None:
        raise InvalidInput(f"Last-Event-ID {event_id[:64]!r} has not the form <ms>-<seq>")
    return int(found.group(1))


Encoding = Callable[[Sequence[Event]], bytes]
"""How some readers want events; those that are equal want them alike."""

MAX_ENCODINGS = 8
"""So many encodings of a burst are kept; whoever wants yet another one makes it anew."""


class Burst(Sequence[Event]):
    """Some events of a stream, shared by all who read them: all that there are in `after` < seq <= `last`."""

    __slots__ = ("_encoded", "_rest", "after", "events", "last", "size")

    def __init__(self, events: Sequence[Event], after: int, last: int) -> None:
        self.events = events
        self.after = after
        self.last = last
        self.size = sum([len(event.body) for event in events])
        """The characters of the bodies."""
        self._encoded: dict[Encoding, bytes] = {}
        self._rest: Burst | None = None

    def encoded(self, encoding: Encoding) -> bytes:
        """Its events in a form that many may want: it is made once."""
        found = self._encoded.get(encoding)
        if found is None:
            found = encoding(self.events)
            if len(self._encoded) < MAX_ENCODINGS:
                self._encoded[encoding] = found
        return found

    def beyond(self, seq: int) -> Burst:
        """What of it comes after `seq`. Readers who were at the same place share that too."""
        if seq <= self.after:
            return self
        rest = self._rest
        if rest is None or rest.after != seq:
            rest = Burst([event for event in self.events if event.seq > seq], seq, max(seq, self.last))
            self._rest = rest
        return rest

    def __len__(self) -> int:
        return len(self.events)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        return self.events[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)


NOTHING = Burst((), 0, 0)
"""What a reader gets whose time is up."""
