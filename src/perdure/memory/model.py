"""Rules of memory's events, and the rows of its tables. This module is pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from perdure.kernel.checks import MAX_KEY, check_choice, check_id, check_number, check_text
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.ids import parse_ulid, ulid_ms
from perdure.memory.records import (
    EVENT_ROLES,
    EVENT_TYPES,
    Citation,
    MemoryEvent,
    NewMemoryEvent,
)

MAX_EVENT_BYTES = 4 << 20
"""Default of the setting `memory_event_bytes`: limit of an event's text in UTF-8 bytes."""
MAX_METADATA = 64
MAX_METADATA_TEXT = 8 << 10
LATEST_MS = 250_000_000_000_000
"""The latest accepted time, in the year 9892. Dates can still represent the weeks around it."""
TOOL_CHARACTERS = 1000
"""Number of characters of a tool's result that count towards a segment."""
PLACE_BITS = 40
"""Bits of a place that number the documents of a namespace."""

DAY_MS = 86_400_000

EVENT = "event"
TOOL_RESULT = EVENT_TYPES.index("tool_result") + 1


# --- input of callers -------------------------------------------------------------------------------------


class NewEventRow(NamedTuple):
    """An event as it is written. `type` and `role` are the numbers of agent-memory."""

    id: str
    session_id: str
    timestamp_ms: int
    type: int
    role: int
    agent: str | None
    tokens: int
    received_at: int
    metadata: str


class TextRow(NamedTuple):
    """A document as it is written."""

    id: str
    kind: str
    timestamp_ms: int
    agent: str | None
    place: int | None
    tags: str
    body: str


class CheckedEvent(NamedTuple):
    """An event that can be stored, with its text."""

    row: NewEventRow
    text: TextRow

    @property
    def size(self) -> int:
        return len(self.text.body) + len(self.row.metadata)


def check_event(event: NewMemoryEvent, max_bytes: int = MAX_EVENT_BYTES) -> CheckedEvent:
    """Check an event and return its rows; InvalidInput if it cannot be stored."""
    id = check_event_id(event.event_id)
    session_id = _check_name(event.session_id, "session_id")
    timestamp_ms = check_time(ulid_ms(id) if event.timestamp_ms is None else event.timestamp_ms)
    body = check_text(_check_storable(event.text, "text"), "text (memory_event_bytes)", max_length=max_bytes)
    agent = check_agent(event.agent)
    type_number = EVENT_TYPES.index(check_choice(event.event_type, EVENT_TYPES, "event_type")) + 1
    role_number = EVENT_ROLES.index(check_choice(event.role, EVENT_ROLES, "role")) + 1
    row = NewEventRow(
        id=id,
        session_id=session_id,
        timestamp_ms=timestamp_ms,
        type=type_number,
        role=role_number,
        agent=agent,
        tokens=estimate_tokens(body, tool=type_number == TOOL_RESULT),
        received_at=0,
        metadata=encode_json(_check_metadata(event.metadata), what="metadata"),
    )
    text = TextRow(id, EVENT, timestamp_ms, agent, None, build_tags(EVENT, [agent] if agent else []), body)
    return CheckedEvent(row, text)


def check_event_id(value: object) -> str:
    """Return a ULID in upper case."""
    id = _check_name(value, "event_id")
    ulid = parse_ulid(id)
    if ulid is None:
        raise InvalidInput(f"event_id is {id[:64]!r}; it must be a ULID, 26 characters such as {_EXAMPLE}")
    return ulid


_EXAMPLE = "01HMZ0KQ6V9B4T5Z7N2C8XJ3PD"


def check_time(value: object, what: str = "timestamp_ms") -> int:
    """Check a time in milliseconds since 1970."""
    return check_number(value, what, most=LATEST_MS)


def check_agent(agent: object) -> str | None:
    """Return the name of an agent in lower case; None if there is none."""
    if agent is None:
        return None
    return check_id(agent, "agent").strip().lower() or None


def _check_name(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"{what} is required")
    return check_id(value, what)


def _check_storable(value: object, what: str) -> object:
    """Return a text without characters that a database rejects; InvalidInput if it is not a string."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
    return storable(value)


def storable(text: str) -> str:
    """Replace NUL and lone surrogates, which databases reject, by U+FFFD."""
    whole = text.replace("\0", "\ufffd")
    try:
        whole.encode()
    except UnicodeEncodeError:
        return whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole


def _check_metadata(metadata: object) -> dict[str, str]:
    if not isinstance(metadata, Mapping):
        raise InvalidInput("metadata must be an object with strings as values")
    if len(metadata) > MAX_METADATA:
        raise InvalidInput(f"metadata has {len(metadata)} keys; it may have {MAX_METADATA}")
    checked: dict[str, str] = {}
    for key, value in metadata.items():
        name = check_text(key, "a key of metadata", max_length=MAX_KEY)
        what = f"metadata[{name[:64]!r}]"
        checked[name] = check_text(_check_storable(value, what), what, max_length=MAX_METADATA_TEXT)
    return checked


def estimate_tokens(text: str, *, tool: bool = False) -> int:
    """Estimate the number of tokens of a text as a quarter of its bytes."""
    counted = text[:TOOL_CHARACTERS] if tool else text
    length = len(counted) if counted.isascii() else len(counted.encode())
    return max(1, length // 4)


# --- documents --------------------------------------------------------------------------------------------


def build_tags(kind: str, agents: Iterable[str]) -> str:
    """Return the words that filter a search by document kind or agent."""
    return " ".join([kind, *map(agent_tag, agents)])


def filter_tags(kind: str | None, agent: str | None) -> list[str]:
    """Return the tags that a document must have."""
    return ([] if kind is None else [kind]) + ([] if agent is None else [agent_tag(agent)])


@lru_cache(maxsize=1024)
def agent_tag(agent: str) -> str:
    """Return the name of an agent as one word of plain characters."""
    return "agent" + sha256(agent.encode()).hexdigest()[:20]


def build_document_range(ns: int) -> tuple[int, int]:
    """Return the first and last place of the documents of a namespace."""
    return ns << PLACE_BITS, ((ns + 1) << PLACE_BITS) - 1


# --- rows -------------------------------------------------------------------------------------------------


class MemoryEventRow(NamedTuple):
    """An event as it is read, with its text."""

    id: str
    session_id: str
    timestamp_ms: int
    type: int
    role: int
    agent: str | None
    tokens: int
    metadata: str
    body: str

    @property
    def place(self) -> EventCursor:
        return EventCursor(self.timestamp_ms, self.id)


class CitedRow(NamedTuple):
    """The session and time of an event."""

    id: str
    session_id: str
    timestamp_ms: int


class DocumentCitation(NamedTuple):
    """An event cited by a document."""

    document: str
    id: str
    session_id: str
    timestamp_ms: int


class HitRow(NamedTuple):
    """A document that matches a query, with the beginning of its text."""

    id: str
    kind: str
    timestamp_ms: int
    agent: str | None
    place: int
    body: str
    score: float


class DocumentVectorRow(NamedTuple):
    """The vector of a document as it is written."""

    place: int
    vector: bytes


class VectorDocument(NamedTuple):
    """The vector of a document with the columns that filter a search."""

    place: int
    vector: bytes
    tags: str
    timestamp_ms: int


class NewDocumentRow(NamedTuple):
    """The new place of a document in the index."""

    id: str
    place: int | None
    was_place: int | None = None


class IndexedDocumentRow(NamedTuple):
    """An indexed document."""

    id: str
    place: int


class MemoryCounterRow(NamedTuple):
    """A row of `memory_counters`."""

    ns: int
    placed: int
    documents: int
    embedded: int
    embedded_at: int | None = None

    @property
    def first_place(self) -> int:
        first, _ = build_document_range(self.ns)
        return first


class FeedRow(NamedTuple):
    """A row of `memory_feeds`."""

    source: str
    position: int
    read_at: int


class MemoryCountRow(NamedTuple):
    """Size of a namespace's memory and of its database."""

    events: int
    nodes: int
    grips: int
    outbox: int
    vectors: int
    stale: int
    failed: int
    path: str
    disk_bytes: int


def row_to_event(row: MemoryEventRow) -> MemoryEvent:
    """Convert a row to an event."""
    return MemoryEvent(
        event_id=row.id,
        session_id=row.session_id,
        timestamp_ms=row.timestamp_ms,
        event_type=EVENT_TYPES[row.type - 1],
        role=EVENT_ROLES[row.role - 1],
        text=row.body,
        metadata=decode_json(row.metadata),
        agent=row.agent,
    )


def row_to_citation(row: CitedRow) -> Citation:
    """Convert a row to a citation."""
    return Citation(event_id=row.id, session_id=row.session_id, timestamp_ms=row.timestamp_ms)


class EventCursor(NamedTuple):
    """A position in the order of events: by time, then by id."""

    timestamp_ms: int = -1
    id: str = ""

    def __str__(self) -> str:
        return f"{self.timestamp_ms}:{self.id}"


def parse_place(cursor: str | None) -> EventCursor:
    """Parse a cursor; None is the beginning."""
    if cursor is None:
        return EventCursor()
    ms, colon, id = check_id(cursor, "after").partition(":")
    if not colon or not ms.isascii() or not ms.isdecimal() or parse_ulid(id) is None:
        raise InvalidInput(f"after is {cursor[:64]!r}; it must be the `after` value of an earlier page")
    return EventCursor(check_time(int(ms), "after"), id)


# --- the outbox -------------------------------------------------------------------------------------------

INDEX_EVENT, UPDATE_TOC = "index_event", "update_toc"
INDEX_CONSUMER, TOC_CONSUMER = "memory-index", "memory-toc"


def outbox_bodies(rows: Sequence[NewEventRow]) -> tuple[str, str]:
    """Return the outbox bodies of a batch of events: for the index and for the table of contents.

    Consumers read pending work from the tables, so one entry may do the work of other entries. The second
    body names the first and last time of an event on each day.
    """
    days: dict[int, tuple[int, int]] = {}
    for row in rows:
        ms = row.timestamp_ms
        first, last = days.get(ms // DAY_MS, (ms, ms))
        days[ms // DAY_MS] = (min(first, ms), max(last, ms))
    shared = {"events": len(rows), "first": min(row.id for row in rows)}
    return (
        encode_json({"action": INDEX_EVENT, **shared}),
        encode_json({"action": UPDATE_TOC, **shared, "spans": sorted(days.values())}),
    )
