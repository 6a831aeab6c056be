"""The rules of memory's events, and the rows of its tables. Everything here is pure."""

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
"""Default of the setting `memory_event_bytes`: the longest text of an event, in UTF-8 bytes."""
MAX_METADATA = 64
MAX_METADATA_TEXT = 8 << 10
LATEST_MS = 250_000_000_000_000
"""The latest time that is accepted, in the year 9892: the weeks around it exist."""
TOOL_CHARACTERS = 1000
"""How many characters of a tool's result count towards a segment."""
PLACE_BITS = 40
"""How many bits of a place number the documents of a namespace."""

DAY_MS = 86_400_000

EVENT = "event"
TOOL_RESULT = EVENT_TYPES.index("tool_result") + 1


# --- what callers give ------------------------------------------------------------------------------------


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
    """Return an event as it is stored; InvalidInput if it cannot be stored."""
    id = check_event_id(event.event_id)
    session_id = _named(event.session_id, "session_id")
    timestamp_ms = check_time(ulid_ms(id) if event.timestamp_ms is None else event.timestamp_ms)
    body = check_text(_storable(event.text, "text"), "text (memory_event_bytes)", max_length=max_bytes)
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
        metadata=encode_json(_metadata(event.metadata), what="metadata"),
    )
    text = TextRow(id, EVENT, timestamp_ms, agent, None, build_tags(EVENT, [agent] if agent else []), body)
    return CheckedEvent(row, text)


def check_event_id(value: object) -> str:
    """A ULID, in upper case."""
    id = _named(value, "event_id")
    found = parse_ulid(id)
    if found is None:
        raise InvalidInput(f"event_id is {id[:64]!r}; it must be a ULID, 26 characters such as {_EXAMPLE}")
    return found


_EXAMPLE = "01HMZ0KQ6V9B4T5Z7N2C8XJ3PD"


def check_time(value: object, what: str = "timestamp_ms") -> int:
    """A time in milliseconds since 1970."""
    return check_number(value, what, most=LATEST_MS)


def check_agent(agent: object) -> str | None:
    """The name of an agent, in lower case; None if it is not named."""
    if agent is None:
        return None
    return check_id(agent, "agent").strip().lower() or None


def _named(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"{what} is required")
    return check_id(value, what)


def _storable(value: object, what: str) -> object:
    """A text without what no database takes: NUL and lone surrogates become U+FFFD."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
    return storable(value)


def storable(text: str) -> str:
    """A text that every database takes: NUL and lone surrogates become U+FFFD."""
    whole = text.replace("\0", "\ufffd")
    try:
        whole.encode()
    except UnicodeEncodeError:
        return whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole


def _metadata(metadata: object) -> dict[str, str]:
    if not isinstance(metadata, Mapping):
        raise InvalidInput("metadata must be an object with strings as values")
    if len(metadata) > MAX_METADATA:
        raise InvalidInput(f"metadata has {len(metadata)} keys; it may have {MAX_METADATA}")
    checked: dict[str, str] = {}
    for key, value in metadata.items():
        name = check_text(key, "a key of metadata", max_length=MAX_KEY)
        what = f"metadata[{name[:64]!r}]"
        checked[name] = check_text(_storable(value, what), what, max_length=MAX_METADATA_TEXT)
    return checked


def estimate_tokens(text: str, *, tool: bool = False) -> int:
    """How many tokens a text has, about: a quarter of its bytes."""
    counted = text[:TOOL_CHARACTERS] if tool else text
    length = len(counted) if counted.isascii() else len(counted.encode())
    return max(1, length // 4)


# --- documents --------------------------------------------------------------------------------------------


def build_tags(kind: str, agents: Iterable[str]) -> str:
    """The words by which a search is narrowed to a kind of document, or to an agent."""
    return " ".join([kind, *map(agent_tag, agents)])


def filter_tags(kind: str | None, agent: str | None) -> list[str]:
    """The tags that a document must have."""
    return ([] if kind is None else [kind]) + ([] if agent is None else [agent_tag(agent)])


@lru_cache(maxsize=1024)
def agent_tag(agent: str) -> str:
    """The name of an agent as one word, whatever characters it has."""
    return "agent" + sha256(agent.encode()).hexdigest()[:20]


def build_document_range(ns: int) -> tuple[int, int]:
    """The first and the last place that a document of a namespace can have."""
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
    """Where an event stands."""

    id: str
    session_id: str
    timestamp_ms: int


class DocumentCitation(NamedTuple):
    """An event behind a document."""

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
    """The vector of a document, and what a search is narrowed by."""

    place: int
    vector: bytes
    tags: str
    timestamp_ms: int


class NewDocumentRow(NamedTuple):
    """The place of a document in the index, which had none before."""

    id: str
    place: int | None
    was_place: int | None = None


class IndexedDocumentRow(NamedTuple):
    """A document that is indexed."""

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
    """How much the memory of a namespace holds, and its database."""

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
    """The record of an event."""
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
    """An event behind a result."""
    return Citation(event_id=row.id, session_id=row.session_id, timestamp_ms=row.timestamp_ms)


class EventCursor(NamedTuple):
    """A place in the order of events: by time, then by id."""

    timestamp_ms: int = -1
    id: str = ""

    def __str__(self) -> str:
        return f"{self.timestamp_ms}:{self.id}"


def parse_place(cursor: str | None) -> EventCursor:
    """The place that a cursor names; None is the beginning."""
    if cursor is None:
        return EventCursor()
    ms, colon, id = check_id(cursor, "after").partition(":")
    if not colon or not ms.isascii() or not ms.isdecimal() or parse_ulid(id) is None:
        raise InvalidInput(f"after is {cursor[:64]!r}; it must be what a page before has given")
    return EventCursor(check_time(int(ms), "after"), id)


# --- the outbox -------------------------------------------------------------------------------------------

INDEX_EVENT, UPDATE_TOC = "index_event", "update_toc"
INDEX_CONSUMER, TOC_CONSUMER = "memory-index", "memory-toc"


def outbox_bodies(rows: Sequence[NewEventRow]) -> tuple[str, str]:
    """What the outbox gets for a batch of events: to index them, and to update the table of contents.

    What is to be done is found in the tables, so that one entry may do the work of others; the second one
    names the days, each with its first and last time that something happened.
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
