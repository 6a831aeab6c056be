"""Records of memory. Times are epoch milliseconds, as in agent-memory."""

from __future__ import annotations

from typing import Annotated, Final, Generic, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta, field

from perdure.kernel.checks import MAX_ID
from perdure.kernel.record import Record
from perdure.memory.calendar import Level

T = TypeVar("T")

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
    """A message or action of an agent, its user or a tool."""

    event_id: str
    session_id: str
    timestamp_ms: int
    event_type: EventType
    role: EventRole
    text: str
    metadata: dict[str, str]
    agent: str | None = None


class Ingested(Record, kw_only=True):
    """Result for an event: `created` is false if its id already existed."""

    event_id: str
    created: bool


# Not a Part, because agent-memory reads on with `after` until `has_more` is false.
class MemoryPage(Record, Generic[T], kw_only=True):
    """Events or nodes in order of time. Pass `after` to read the next page."""

    items: list[T]
    has_more: bool
    after: str | None = None


class Citation(Record, kw_only=True):
    """An event behind a result."""

    event_id: str
    session_id: str
    timestamp_ms: int


class SearchHit(Record, kw_only=True):
    """A document that matches a search, with the events behind it. A higher `score` is better."""

    kind: DocumentKind
    id: str
    score: float
    text: str
    """The part of the text that a list shows."""
    timestamp_ms: int
    agent: str | None = None
    keywords: list[str] = field(default_factory=list)
    """The keywords of a node."""
    events: list[Citation] = field(default_factory=list)


class SearchResult(Record, kw_only=True):
    """Results of a search, best first. `mode_used` is the mode that was used."""

    items: list[SearchHit]
    mode_used: SearchMode
    text_available: bool = True
    vector_available: bool = False
    documents: int = 0
    """Number of indexed documents."""


# --- the table of contents --------------------------------------------------------------------------------

NodeStatus = Literal["draft", "building", "complete", "failed"]
NodeField = Literal["title", "summary", "bullets", "keywords"]
NODE_FIELDS: Final[tuple[NodeField, ...]] = get_args(NodeField)


class Bullet(Record, kw_only=True):
    """A line of a summary, with the grips that link it to events."""

    text: str
    grip_ids: list[str] = field(default_factory=list)


class TocNode(Record, kw_only=True):
    """A node of the table of contents in its last complete version.

    `status` is `building` while a new version is built. Before the first version the text is a placeholder.
    """

    node_id: str
    level: Level
    title: str
    status: NodeStatus
    summary: str
    bullets: list[Bullet]
    keywords: list[str]
    agents: list[str]
    parent_id: str | None
    child_node_ids: list[str]
    """The first 1,000 children; `browse` lists all."""
    start_time_ms: int
    end_time_ms: int
    version: int
    error: str | None = None
    """Why the last build failed."""


class Grip(Record, kw_only=True):
    """An excerpt of events of one session, which links a line of a summary to them."""

    grip_id: str
    node_id: str
    session_id: str
    timestamp_ms: int
    excerpt: str
    event_id_start: str
    event_id_end: str
    event_ids: list[str]
    source: str


class ExpandedGrip(Record, kw_only=True):
    """A grip with its events and the events of its session around them."""

    grip: Grip
    events_before: list[MemoryEvent]
    excerpt_events: list[MemoryEvent]
    events_after: list[MemoryEvent]


class NodeMatch(Record, kw_only=True):
    """A part of a node that has words of a query. `score` is the share of the words, from 0 to 1."""

    part: NodeField
    text: str
    score: float
    grip_ids: list[str] = field(default_factory=list)


class NodeMatches(Record, kw_only=True):
    """Matches inside one node, best first; `relevance` is the mean of the scores."""

    node_id: str
    title: str
    level: Level
    matches: list[NodeMatch]
    relevance: float


class ChildMatches(Record, kw_only=True):
    """Nodes with matches, best first."""

    items: list[NodeMatches]
    has_more: bool


class MemoryStats(Record, kw_only=True):
    """Size and place of a memory."""

    path: str
    events: int
    toc_nodes: int
    grips: int
    outbox: int
    disk_bytes: int
    indexed: int
    vectors: int
    stale_nodes: int
    failed_nodes: int
    vectors_at: str | None = None
    """Time of the last stored vector, in ISO 8601."""
