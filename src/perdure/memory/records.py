"""What callers give to memory and see of it. Times are epoch milliseconds, as agent-memory has them."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta, field

from perdure.kernel.checks import MAX_ID
from perdure.kernel.record import Record

EventType = Literal[
    "session_start",
    "user_message",
    "assistant_message",
    "tool_result",
    "assistant_stop",
    "subagent_start",
    "subagent_stop",
    "session_end",
]
EVENT_TYPES: Final[tuple[EventType, ...]] = get_args(EventType)
EventRole = Literal["user", "assistant", "system", "tool"]
EVENT_ROLES: Final[tuple[EventRole, ...]] = get_args(EventRole)
DocumentKind = Literal["event", "node", "grip"]
DOCUMENT_KINDS: Final[tuple[DocumentKind, ...]] = get_args(DocumentKind)
SearchMode = Literal["text", "vector", "hybrid"]
SEARCH_MODES: Final[tuple[SearchMode, ...]] = get_args(SearchMode)

EventId = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]


class NewMemoryEvent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An event to be ingested. `event_id` is a ULID; sending one twice stores it once.

    `timestamp_ms` is when it happened, by default the time of its id.
    """

    event_id: str
    session_id: str
    timestamp_ms: int | None = None
    event_type: EventType = "user_message"
    role: EventRole = "user"
    text: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    agent: str | None = None


class MemoryEvent(Record, kw_only=True):
    """Something that an agent, its user or a tool said or did."""

    event_id: str
    session_id: str
    timestamp_ms: int
    event_type: EventType
    role: EventRole
    text: str
    metadata: dict[str, str]
    agent: str | None = None


class Ingested(Record, kw_only=True):
    """What became of an event: `created` is false if its id was known before."""

    event_id: str
    created: bool


class EventPage(Record, kw_only=True):
    """Events in the order of their time. Read on with `after`."""

    items: list[MemoryEvent]
    has_more: bool
    after: str | None = None


class Citation(Record, kw_only=True):
    """An event behind a result."""

    event_id: str
    session_id: str
    timestamp_ms: int


class SearchHit(Record, kw_only=True):
    """A document that a search found, with the events behind it. A higher `score` is better."""

    kind: DocumentKind
    id: str
    score: float
    text: str
    """The part of it that a list shows."""
    timestamp_ms: int
    agent: str | None = None
    events: list[Citation] = field(default_factory=list)


class SearchResult(Record, kw_only=True):
    """What a search found, the best first. `mode_used` is how it searched in the end."""

    items: list[SearchHit]
    mode_used: SearchMode
    text_available: bool = True
    vector_available: bool = False
    documents: int = 0
    """How many documents are indexed."""
