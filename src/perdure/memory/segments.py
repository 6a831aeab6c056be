"""How a day is cut into segments: where nothing happened for a while, and where one is full. All pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from perdure.memory.calendar import DAY_MS, segment_id

GAP_MS: Final = 30 * 60_000
"""A longer silence ends a segment."""
MAX_TOKENS: Final = 4000
OVERLAP_MS: Final = 5 * 60_000
OVERLAP_TOKENS: Final = 500
"""What a segment repeats of the one before it at most, so that its beginning can be understood."""


class EventSize(NamedTuple):
    """What of an event decides where segments are cut."""

    id: str
    timestamp_ms: int
    tokens: int


class MemorySegment(NamedTuple):
    """A stretch of events, in the order of their time."""

    id: str
    first: EventSize
    last: EventSize
    events: int
    tokens: int


def cut(events: Iterable[EventSize]) -> list[MemorySegment]:
    """The segments of events that are in the order of their time.

    A segment ends before a silence of more than 30 minutes, before an event that would bring it over 4,000
    tokens, and with the day. Each cut depends on the events since the cut before it alone, so that a change
    moves no earlier one.
    """
    segments: list[MemorySegment] = []
    for event in events:
        current = segments[-1] if segments else None
        if current is None or _ends_before(current, event):
            id = segment_id(event.timestamp_ms, event.id)
            segments.append(MemorySegment(id, event, event, 1, event.tokens))
        else:
            segments[-1] = current._replace(
                last=event, events=current.events + 1, tokens=current.tokens + event.tokens
            )
    return segments


def _ends_before(segment: MemorySegment, event: EventSize) -> bool:
    return (
        event.timestamp_ms - segment.last.timestamp_ms > GAP_MS
        or segment.tokens + event.tokens > MAX_TOKENS
        or event.timestamp_ms // DAY_MS != segment.first.timestamp_ms // DAY_MS
    )


def overlap(before: Sequence[EventSize], first: EventSize) -> list[EventSize]:
    """Which of the events before a segment are repeated in it: the last ones, of a few minutes."""
    taken: list[EventSize] = []
    tokens = 0
    for event in reversed(before):
        tokens += event.tokens
        if tokens > OVERLAP_TOKENS or first.timestamp_ms - event.timestamp_ms > OVERLAP_MS:
            break
        taken.append(event)
    return taken[::-1]
