"""Events, heads and rows of streams. Everything here is pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import msgspec

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import Conflict, InvalidInput

_ID = re.compile(r"^(?:\d{1,16}-)?(\d{1,18})$")


VALUES = "values"
"""The event with a state; a subgraph's event adds `|` and its namespace."""
METADATA = "metadata"
"""The first event of an attempt of a run."""
CONTROL = "control"
"""The event of a requested stop of a run."""
REFERENCE_SIZE = 1024
"""A shorter state is stored in its event, because a reference would save little."""


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """The checkpoint whose state an event shows.

    With `keys`, as JSON, the state is in the pieces of a graph's checkpoint: a list names the channels of an
    object, a string names the one channel with the state. Without `keys` it is the state of the thread.
    """

    checkpoint_id: str
    checkpoint_ns: str | None = None
    keys: str | None = None


class NewEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event to append; `body` is encoded JSON.

    An event with `shown` is stored as a reference to that checkpoint, which has the same data as the body.
    """

    event: str
    body: str
    shown: Shown | None = None


class Reference(NamedTuple):
    """Reference of a stored event to its data: the checkpoint of a thread, and its shown keys."""

    thread_id: str
    checkpoint_ns: str | None
    checkpoint_id: str
    keys: str | None


class ReferenceRow(NamedTuple):
    """An event stored as a reference; `size` is the length of its data in bytes."""

    stream: str
    seq: int
    size: int
    thread_id: str
    checkpoint_ns: str | None
    checkpoint_id: str
    keys: str | None

    @property
    def reference(self) -> Reference:
        return Reference(self.thread_id, self.checkpoint_ns, self.checkpoint_id, self.keys)


class StreamEvent(msgspec.Struct, frozen=True):
    """An event of a stream. `seq` counts from 1 without gaps; `ms` never decreases."""

    seq: int
    ms: int
    source: str
    """Stream of the append: the run, also if the event is read in the stream of the run's thread."""
    attempt: int
    event: str
    body: str

    @property
    def id(self) -> str:
        """Value of `Last-Event-ID` to resume after this event."""
        return f"{self.ms}-{self.seq}"

    @property
    def data(self) -> Any:
        """Decoded `body`."""
        return decode_json(self.body)


class SentEvent(msgspec.Struct, frozen=True):
    """A stored event of an attempt; the body of a reference is empty."""

    seq: int
    attempt: int
    event: str
    body: str


class StoredEvents(msgspec.Struct, gc=False):
    """A row of events: one event, or `count` events."""

    seq: int
    ms: int
    source: str
    attempt: int
    event: str
    body: str
    count: int | None


class StreamEventRow(msgspec.Struct, gc=False):
    """A stored row: an event with its data, a reference with an empty body, or `count` events."""

    stream: str
    seq: int
    ms: int
    attempt: int
    event: str
    body: str
    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    keys: str | None = None
    size: int | None = None
    count: int | None = None


class EventBodyRow(msgspec.Struct, gc=False):
    """An event whose reference is replaced by its data."""

    stream: str
    seq: int
    body: str
    thread_id: None = None
    checkpoint_ns: None = None
    checkpoint_id: None = None
    keys: None = None
    size: None = None


class StreamLinkRow(msgspec.Struct, gc=False):
    """Place of `count` events of a joined stream: in `source`, from `source_seq` on."""

    stream: str
    seq: int
    ms: int
    source: str
    source_seq: int
    count: int


class Head(msgspec.Struct, frozen=True):
    """Last position of a stream, and its end if it has ended."""

    stream: str
    last_seq: int
    last_ms: int
    end_seq: int | None


class StreamEnd(msgspec.Struct, frozen=True):
    """End of a stream after an append."""

    last_seq: int
    ms: int


class LockedHead(msgspec.Struct):
    """A locked head, while events are appended."""

    stream: str
    last_seq: int
    last_ms: int
    end_seq: int | None
    end_time: int | None = None
    is_new: bool = False

    def take(self, count: int, ms: int) -> int:
        """Take the next `count` numbers, and return the first one."""
        if self.end_seq is not None:
            raise Conflict(f"the stream {self.stream} has ended at {self.end_seq}")
        first = self.last_seq + 1
        self.last_seq += count
        self.last_ms = max(self.last_ms, ms)
        return first

    @property
    def place(self) -> StreamEnd:
        return StreamEnd(self.last_seq, self.last_ms)


class EndedStream(NamedTuple):
    """An ended stream of any namespace."""

    ns: int
    stream: str
    last_seq: int


def new_head(stream: str) -> LockedHead:
    """Build the head of a new stream."""
    return LockedHead(stream=stream, last_seq=0, last_ms=0, end_seq=None, is_new=True)


# --- events that share a row ------------------------------------------------------------------------------

BATCH_SIZE = 2048
"""Maximum number of characters of data in a row of several events."""


def batch_end(events: Sequence[NewEvent], start: int) -> int:
    """Return the end of the events from `start` on that share a row: small ones without references."""
    size = 0
    for end in range(start, len(events)):
        new = events[end]
        size += len(new.body)
        if size > BATCH_SIZE or new.shown is not None or "\n" in new.event:
            return max(end, start + 1)
    return len(events)


def encode_batch(events: Sequence[NewEvent]) -> tuple[str, str]:
    """Encode several events for one row: a line with the name and the length of each, and all data."""
    lines = [f"{new.event} {len(new.body)}" for new in events]
    return "\n".join(lines), "".join([new.body for new in events])


def events_in(rows: Iterable[StoredEvents], after: int = 0, limit: int | None = None) -> list[StreamEvent]:
    """Return the events of rows after a number, at most `limit`."""
    events: list[StreamEvent] = []
    for row in rows:
        if row.count is None:
            events.append(StreamEvent(row.seq, row.ms, row.source, row.attempt, row.event, row.body))
        else:
            events += [event for event in _decode_batch(row) if event.seq > after]
            if limit is not None and len(events) >= limit:
                break
    return events[:limit]


def _decode_batch(row: StoredEvents) -> Iterator[StreamEvent]:
    start = 0
    for seq, line in enumerate(row.event.split("\n"), row.seq):
        event, _, length = line.rpartition(" ")
        end = start + int(length)
        yield StreamEvent(seq, row.ms, row.source, row.attempt, event, row.body[start:end])
        start = end


def parse_seq(event_id: str) -> int:
    """Parse the event number of a `Last-Event-ID`; -1 and 0 come before the first event."""
    if event_id in ("-1", "0"):
        return 0
    match = _ID.match(event_id)
    if match is None:
        raise InvalidInput(f"Last-Event-ID {event_id[:64]!r} must have the form <ms>-<seq>")
    return int(match.group(1))


Encoding = Callable[[Sequence[StreamEvent]], bytes]
"""Encoder of events for some readers. Equal encoders return equal bytes."""

MAX_ENCODINGS = 8
"""Maximum number of cached encodings of a burst."""


class Burst(Sequence[StreamEvent]):
    """All events of a stream with `after` < seq <= `last`, shared by all readers."""

    __slots__ = ("_encoded", "_rest", "after", "events", "last", "size")

    def __init__(self, events: Sequence[StreamEvent], after: int, last: int) -> None:
        self.events = events
        self.after = after
        self.last = last
        self.size = sum([len(event.body) for event in events])
        """Number of characters of the bodies."""
        self._encoded: dict[Encoding, bytes] = {}
        self._rest: Burst | None = None

    def encoded(self, encoding: Encoding) -> bytes:
        """Return the encoded events; each encoding is cached."""
        data = self._encoded.get(encoding)
        if data is None:
            data = encoding(self.events)
            if len(self._encoded) < MAX_ENCODINGS:
                self._encoded[encoding] = data
        return data

    def beyond(self, seq: int) -> Burst:
        """Return the events after `seq`; readers at the same position share them."""
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
    def __getitem__(self, index: int) -> StreamEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[StreamEvent]: ...
    def __getitem__(self, index: int | slice) -> StreamEvent | Sequence[StreamEvent]:
        return self.events[index]

    def __iter__(self) -> Iterator[StreamEvent]:
        return iter(self.events)


NOTHING = Burst((), 0, 0)
"""Result of a read after its timeout."""
