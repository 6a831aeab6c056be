"""Records of memory as messages of its gRPC interface, and messages as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from perdure.kernel.checks import check_choice
from perdure.kernel.errors import InvalidInput
from perdure.memory import messages as m
from perdure.memory.calendar import LEVELS, Level
from perdure.memory.records import (
    EVENT_ROLES,
    EVENT_TYPES,
    NODE_FIELDS,
    Bullet,
    ChildMatches,
    Citation,
    DocumentKind,
    EventRole,
    EventType,
    ExpandedGrip,
    Grip,
    Ingested,
    MemoryEvent,
    NewMemoryEvent,
    NodeField,
    NodeMatch,
    NodeMatches,
    SearchHit,
    SearchMode,
    TocNode,
)

N = TypeVar("N", bound=str)

TYPES: Final[dict[int, EventType]] = {0: "user_message", **dict(enumerate(EVENT_TYPES, 1))}
ROLES: Final[dict[int, EventRole]] = {0: "user", **dict(enumerate(EVENT_ROLES, 1))}
KINDS: Final[dict[int, DocumentKind]] = {1: "node", 2: "grip", 1001: "event"}
"""The numbers of TeleportDocType and VectorTargetType that name a kind."""
NODES_AND_GRIPS: Final = (0, 3)
"""What agent-memory calls unspecified, and all: it does not index events."""
ALL_KINDS: Final = 1000
DOC_TYPES: Final[dict[DocumentKind, str]] = {"node": "toc_node", "grip": "grip", "event": "event"}
LEVEL_NAMES: Final[dict[int, Level]] = dict(enumerate(LEVELS, 1))
PARTS: Final[dict[int, NodeField]] = dict(enumerate(NODE_FIELDS, 1))
MODES: Final[dict[int, SearchMode]] = {0: "hybrid", 1: "vector", 2: "text", 3: "hybrid"}


def named(names: Mapping[int, N], number: int, what: str) -> N:
    """The name of a number; InvalidInput if it has none."""
    if number not in names:
        raise InvalidInput(f"there is no {what} {number}")
    return names[number]


def find_number(names: Mapping[int, N], name: N) -> int:
    """The number of a name."""
    return max(number for number, each in names.items() if each == name)


_TYPE_NUMBERS = {name: find_number(TYPES, name) for name in EVENT_TYPES}
_ROLE_NUMBERS = {name: find_number(ROLES, name) for name in EVENT_ROLES}
_KINDS_OF_DOC_TYPES = {name: kind for kind, name in DOC_TYPES.items()}


# --- events -----------------------------------------------------------------------------------------------


def message_to_new_event(message: Any) -> NewMemoryEvent:
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


def message_to_event(message: Any) -> MemoryEvent:
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


def message_to_ingested(message: Any) -> Ingested:
    """What became of an event."""
    return Ingested(event_id=message.event_id, created=message.created)


# --- searching --------------------------------------------------------------------------------------------


def parse_kinds(number: int) -> list[DocumentKind | None]:
    """Return the kinds of documents that a search is narrowed to; None is any kind.

    Without a type these are nodes and grips, as in agent-memory, which does not index events.
    """
    if number in NODES_AND_GRIPS:
        return ["node", "grip"]
    return [None if number == ALL_KINDS else named(KINDS, number, "document type")]


def time_range(since_ms: int | None, until_ms: int | None) -> Any:
    """The first and the last millisecond of a search as a time filter; None for all times."""
    if since_ms is None and until_ms is None:
        return None
    return m.TimeRange(start_ms=since_ms or 0, end_ms=0 if until_ms is None else until_ms + 1)


def parse_times(request: Any) -> tuple[int | None, int | None]:
    """The first and the last millisecond of a request's time filter, whose end is excluded.

    An end that is not set is none.
    """
    if not request.HasField("time_filter"):
        return None, None
    times = request.time_filter
    return times.start_ms, times.end_ms - 1 if times.end_ms else None


def teleport_result(hit: SearchHit) -> Any:
    """A result of the full-text search, as a message."""
    return m.TeleportSearchResult(
        doc_id=hit.id,
        doc_type=find_number(KINDS, hit.kind),
        score=hit.score,
        keywords=" ".join(hit.keywords) or None,
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


def message_to_hit(message: Any) -> SearchHit:
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


# --- the table of contents --------------------------------------------------------------------------------


def node_message(node: TocNode) -> Any:
    """A node as a message."""
    return m.TocNode(
        node_id=node.node_id,
        level=find_number(LEVEL_NAMES, node.level),
        title=node.title,
        summary=node.summary or None,
        bullets=[m.TocBullet(text=each.text, grip_ids=each.grip_ids) for each in node.bullets],
        keywords=node.keywords,
        child_node_ids=node.child_node_ids,
        start_time_ms=node.start_time_ms,
        end_time_ms=node.end_time_ms,
        version=node.version,
        status=node.status,
        parent_id=node.parent_id,
        agents=node.agents,
        error=node.error,
    )


def message_to_node(message: Any) -> TocNode:
    """A node of the table of contents."""
    return TocNode(
        node_id=message.node_id,
        level=named(LEVEL_NAMES, message.level, "level"),
        title=message.title,
        status=message.status,
        summary=message.summary,
        bullets=[Bullet(text=each.text, grip_ids=list(each.grip_ids)) for each in message.bullets],
        keywords=list(message.keywords),
        agents=list(message.agents),
        parent_id=message.parent_id if message.HasField("parent_id") else None,
        child_node_ids=list(message.child_node_ids),
        start_time_ms=message.start_time_ms,
        end_time_ms=message.end_time_ms,
        version=message.version,
        error=message.error if message.HasField("error") else None,
    )


def expanded_message(found: ExpandedGrip) -> Any:
    """A grip with its events, as a message."""
    grip = found.grip
    return m.ExpandGripResponse(
        grip=m.Grip(
            grip_id=grip.grip_id,
            excerpt=grip.excerpt,
            event_id_start=grip.event_id_start,
            event_id_end=grip.event_id_end,
            timestamp_ms=grip.timestamp_ms,
            source=grip.source,
            node_id=grip.node_id,
            session_id=grip.session_id,
            event_ids=grip.event_ids,
        ),
        events_before=map(event_message, found.events_before),
        excerpt_events=map(event_message, found.excerpt_events),
        events_after=map(event_message, found.events_after),
    )


def message_to_expanded(message: Any) -> ExpandedGrip:
    """A grip with its events."""
    grip = message.grip
    return ExpandedGrip(
        grip=Grip(
            grip_id=grip.grip_id,
            node_id=grip.node_id,
            session_id=grip.session_id,
            timestamp_ms=grip.timestamp_ms,
            excerpt=grip.excerpt,
            event_id_start=grip.event_id_start,
            event_id_end=grip.event_id_end,
            event_ids=list(grip.event_ids),
            source=grip.source,
        ),
        events_before=[message_to_event(each) for each in message.events_before],
        excerpt_events=[message_to_event(each) for each in message.excerpt_events],
        events_after=[message_to_event(each) for each in message.events_after],
    )


def part_numbers(fields: Sequence[NodeField] | None) -> list[int]:
    """The numbers of the parts of a node to search in; none for all of them."""
    return [find_number(PARTS, check_choice(each, NODE_FIELDS, "fields")) for each in fields or ()]


def parse_parts(numbers: Any) -> list[NodeField] | None:
    """The parts of a node to search in; None for all of them."""
    return [named(PARTS, number, "field") for number in numbers if number] or None


def match_messages(found: NodeMatches) -> list[Any]:
    """What a search inside a node found, as messages."""
    return [
        m.SearchMatch(
            field=find_number(PARTS, each.part), text=each.text, grip_ids=each.grip_ids, score=each.score
        )
        for each in found.matches
    ]


def node_result(found: NodeMatches) -> Any:
    """A node in which a search found something, as a message."""
    return m.SearchNodeResult(
        node_id=found.node_id,
        title=found.title,
        level=find_number(LEVEL_NAMES, found.level),
        matches=match_messages(found),
        relevance_score=found.relevance,
    )


def message_to_matches(message: Any, title: str = "") -> NodeMatches:
    """What a search inside one node found; the answer of SearchNode has no title and no relevance."""
    matches = [_message_to_match(match) for match in message.matches]
    scores = [match.score for match in matches]
    return NodeMatches(
        node_id=message.node_id,
        title=title,
        level=named(LEVEL_NAMES, message.level, "level"),
        matches=matches,
        relevance=sum(scores) / len(scores) if scores else 0.0,
    )


def message_to_children(message: Any) -> ChildMatches:
    """The nodes in which a search found something."""
    return ChildMatches(
        items=[
            msgspec.structs.replace(message_to_matches(each, each.title), relevance=each.relevance_score)
            for each in message.results
        ],
        has_more=message.has_more,
    )


def _message_to_match(message: Any) -> NodeMatch:
    part = named(PARTS, message.field, "field")
    return NodeMatch(part=part, text=message.text, score=message.score, grip_ids=list(message.grip_ids))
