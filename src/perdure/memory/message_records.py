"""Records of memory as messages of its gRPC interface, and messages as records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from perdure.kernel.errors import InvalidInput
from perdure.memory import messages as m
from perdure.memory.records import (
    EVENT_ROLES,
    EVENT_TYPES,
    Citation,
    DocumentKind,
    EventRole,
    EventType,
    Ingested,
    MemoryEvent,
    NewMemoryEvent,
    SearchHit,
    SearchMode,
)

N = TypeVar("N", bound=str)

TYPES: Final[dict[int, EventType]] = {0: "user_message", **dict(enumerate(EVENT_TYPES, 1))}
ROLES: Final[dict[int, EventRole]] = {0: "user", **dict(enumerate(EVENT_ROLES, 1))}
KINDS: Final[dict[int, DocumentKind]] = {1: "node", 2: "grip", 1001: "event"}
"""The numbers of TeleportDocType and VectorTargetType that name a kind."""
ANY_KIND: Final = (0, 3)
DOC_TYPES: Final[dict[DocumentKind, str]] = {"node": "toc_node", "grip": "grip", "event": "event"}
MODES: Final[dict[int, SearchMode]] = {0: "hybrid", 1: "vector", 2: "text", 3: "hybrid"}


def named(names: Mapping[int, N], number: int, what: str) -> N:
    """The name of a number; InvalidInput if it has none."""
    if number not in names:
        raise InvalidInput(f"there is no {what} {number}")
    return names[number]


def number_of(names: Mapping[int, N], name: N) -> int:
    """The number of a name."""
    return max(number for number, each in names.items() if each == name)


_TYPE_NUMBERS = {name: number_of(TYPES, name) for name in EVENT_TYPES}
_ROLE_NUMBERS = {name: number_of(ROLES, name) for name in EVENT_ROLES}
_KINDS_OF_DOC_TYPES = {name: kind for kind, name in DOC_TYPES.items()}


# --- events -----------------------------------------------------------------------------------------------


def new_event_of(message: Any) -> NewMemoryEvent:
    """An event to be ingested. What is not specified is a message of the user, at the time of its id."""
    return NewMemoryEvent(
        event_id=message.event_id,
        session_id=message.session_id,
        timestamp_ms=message.timestamp_ms or None,
        event_type=named(TYPES, message.event_type, "event_type"),
        role=named(ROLES, message.role, "role"),
        text=message.text,
        metadata=dict(message.metadata),
        agent=message.agent if message.HasField("agent") else None,
    )


def event_message(event: NewMemoryEvent | MemoryEvent) -> Any:
    """An event as a message."""
    try:
        return m.Event(
            event_id=event.event_id,
            session_id=event.session_id,
            timestamp_ms=event.timestamp_ms,
            event_type=_TYPE_NUMBERS[event.event_type],
            role=_ROLE_NUMBERS[event.role],
            text=event.text,
            metadata=event.metadata,
            agent=event.agent,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInput(f"the event cannot be sent: {error}") from None


def event_of(message: Any) -> MemoryEvent:
    """An event that was read."""
    return MemoryEvent(
        event_id=message.event_id,
        session_id=message.session_id,
        timestamp_ms=message.timestamp_ms,
        event_type=named(TYPES, message.event_type, "event_type"),
        role=named(ROLES, message.role, "role"),
        text=message.text,
        metadata=dict(message.metadata),
        agent=message.agent if message.HasField("agent") else None,
    )


def ingested_message(answer: Ingested) -> Any:
    """What became of an event, as a message."""
    return m.IngestEventResponse(event_id=answer.event_id, created=answer.created)


def ingested_of(message: Any) -> Ingested:
    """What became of an event."""
    return Ingested(event_id=message.event_id, created=message.created)


# --- searching --------------------------------------------------------------------------------------------


def kind_of(number: int) -> DocumentKind | None:
    """The kind of documents that a search is narrowed to; None for all of them."""
    return None if number in ANY_KIND else named(KINDS, number, "document type")


def times_of(request: Any) -> tuple[int | None, int | None]:
    """The first and the last millisecond of a request's time filter, whose end is excluded."""
    if not request.HasField("time_filter"):
        return None, None
    times = request.time_filter
    return times.start_ms, times.end_ms - 1


def teleport_result(hit: SearchHit) -> Any:
    """A result of the full-text search, as a message."""
    return m.TeleportSearchResult(
        doc_id=hit.id,
        doc_type=number_of(KINDS, hit.kind),
        score=hit.score,
        timestamp_ms=hit.timestamp_ms,
        agent=hit.agent,
        text_preview=hit.text,
        citations=map(_citation_message, hit.events),
    )


def match_message(hit: SearchHit) -> Any:
    """A result of a search by vectors, or of both kinds of search, as a message."""
    return m.VectorMatch(
        doc_id=hit.id,
        doc_type=DOC_TYPES[hit.kind],
        score=hit.score,
        text_preview=hit.text,
        timestamp_ms=hit.timestamp_ms,
        agent=hit.agent,
        citations=map(_citation_message, hit.events),
    )


def hit_of(message: Any) -> SearchHit:
    """A result of a search."""
    if message.doc_type not in _KINDS_OF_DOC_TYPES:
        raise InvalidInput(f"there is no document type {message.doc_type!r}")
    return SearchHit(
        kind=_KINDS_OF_DOC_TYPES[message.doc_type],
        id=message.doc_id,
        score=message.score,
        text=message.text_preview,
        timestamp_ms=message.timestamp_ms,
        agent=message.agent if message.HasField("agent") else None,
        events=[
            Citation(event_id=each.event_id, session_id=each.session_id, timestamp_ms=each.timestamp_ms)
            for each in message.citations
        ],
    )


def _citation_message(cited: Citation) -> Any:
    return m.Citation(event_id=cited.event_id, session_id=cited.session_id, timestamp_ms=cited.timestamp_ms)
