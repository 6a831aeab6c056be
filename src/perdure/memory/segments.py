"""Cut of a day into segments: after a silence, or when a segment is full. This module is pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from perdure.memory.calendar import DAY_MS, segment_id

GAP_MS: Final = 30 * 60_000
"""A longer silence ends a segment."""
MAX_TOKENS: Final = 4000
OVERLAP_MS: Final = 5 * 60_000
OVERLAP_TOKENS: Final = 500
"""Limit of tokens that a segment repeats from the previous segment, for context."""


class EventSize(NamedTuple):
    """The columns of an event that decide where segments are cut."""

    id: str
    timestamp_ms: int
    tokens: int


class MemorySegment(NamedTuple):
    """A sequence of events in order of time."""

    id: str
    first: EventSize
    last: EventSize
    events: int
    tokens: int


def cut(events: Iterable[EventSize]) -> list[MemorySegment]:
    """Cut events, which are in order of time, into segments.

    A segment ends before a silence of more than 30 minutes, before an event that would bring it over 4,000
    tokens, and with the day. Each cut depends only on the events since the previous cut, so that a change
    moves no earlier cut.
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
    """Return the events repeated at the start of a segment: the last events of the minutes before it."""
    taken: list[EventSize] = []
    tokens = 0
    for event in reversed(before):
        tokens += event.tokens
        if tokens > OVERLAP_TOKENS or first.timestamp_ms - event.timestamp_ms > OVERLAP_MS:
            break
        taken.append(event)
    return taken[::-1]
