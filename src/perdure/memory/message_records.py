"""Conversion between memory's records and its gRPC messages."""

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
"""Document kinds by their numbers in TeleportDocType and VectorTargetType."""
NODES_AND_GRIPS: Final = (0, 3)
"""The numbers for "unspecified" and "all" in agent-memory, which does not index events."""
ALL_KINDS: Final = 1000
DOC_TYPES: Final[dict[DocumentKind, str]] = {"node": "toc_node", "grip": "grip", "event": "event"}
LEVEL_NAMES: Final[dict[int, Level]] = dict(enumerate(LEVELS, 1))
PARTS: Final[dict[int, NodeField]] = dict(enumerate(NODE_FIELDS, 1))
MODES: Final[dict[int, SearchMode]] = {0: "hybrid", 1: "vector", 2: "text", 3: "hybrid"}


def named(names: Mapping[int, N], number: int, what: str) -> N:
    """Return the name of a number; InvalidInput if it has none."""
    if number not in names:
        raise InvalidInput(f"unknown {what} {number}")
    return names[number]


def find_number(names: Mapping[int, N], name: N) -> int:
    """Return the number of a name."""
    return max(number for number, other in names.items() if other == name)


_TYPE_NUMBERS = {name: find_number(TYPES, name) for name in EVENT_TYPES}
_ROLE_NUMBERS = {name: find_number(ROLES, name) for name in EVENT_ROLES}
_KINDS_OF_DOC_TYPES = {name: kind for kind, name in DOC_TYPES.items()}


# --- events -----------------------------------------------------------------------------------------------


def message_to_new_event(message: Any) -> NewMemoryEvent:
    """Convert a message to a new event. Defaults are a user message at the time of its id."""
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
    """Convert an event to a message."""
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
    """Convert a message to an event."""
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
    """Convert the result of an ingest to a message."""
    return m.IngestEventResponse(event_id=answer.event_id, created=answer.created)


def message_to_ingested(message: Any) -> Ingested:
    """Convert a message to the result of an ingest."""
    return Ingested(event_id=message.event_id, created=message.created)


# --- searching --------------------------------------------------------------------------------------------


def parse_kinds(number: int) -> list[DocumentKind | None]:
    """Return the document kinds of a search; None is any kind.

    The default is nodes and grips, as in agent-memory.
    """
    if number in NODES_AND_GRIPS:
        return ["node", "grip"]
    return [None if number == ALL_KINDS else named(KINDS, number, "document type")]


def time_range(since_ms: int | None, until_ms: int | None) -> Any:
    """Return the time filter of a search; None for all times."""
    if since_ms is None and until_ms is None:
        return None
    return m.TimeRange(start_ms=since_ms or 0, end_ms=0 if until_ms is None else until_ms + 1)


def parse_times(request: Any) -> tuple[int | None, int | None]:
    """Return the first and last millisecond of a request's time filter. The end of the filter is exclusive.

    None stands for an end that is not set.
    """
    if not request.HasField("time_filter"):
        return None, None
    times = request.time_filter
    return times.start_ms, times.end_ms - 1 if times.end_ms else None


def teleport_result(hit: SearchHit) -> Any:
    """Convert a hit to a result of the full-text search."""
    return m.TeleportSearchResult(
        doc_id=hit.id,
        doc_type=find_number(KINDS, hit.kind),
        score=hit.score,
        keywords=" ".join(hit.keywords) or None,
        timestamp_ms=hit.timestamp_ms,
        agent=hit.agent,
        text_preview=hit.text,
        citations=map(_citation_to_message, hit.events),
    )


def match_message(hit: SearchHit) -> Any:
    """Convert a hit to a result of the vector or hybrid search."""
    return m.VectorMatch(
        doc_id=hit.id,
        doc_type=DOC_TYPES[hit.kind],
        score=hit.score,
        text_preview=hit.text,
        timestamp_ms=hit.timestamp_ms,
        agent=hit.agent,
        citations=map(_citation_to_message, hit.events),
    )


def message_to_hit(message: Any) -> SearchHit:
    """Convert a result of a search to a hit."""
    if message.doc_type not in _KINDS_OF_DOC_TYPES:
        raise InvalidInput(f"unknown document type {message.doc_type!r}")
    return SearchHit(
        kind=_KINDS_OF_DOC_TYPES[message.doc_type],
        id=message.doc_id,
        score=message.score,
        text=message.text_preview,
        timestamp_ms=message.timestamp_ms,
        agent=message.agent if message.HasField("agent") else None,
        events=[
            Citation(event_id=cited.event_id, session_id=cited.session_id, timestamp_ms=cited.timestamp_ms)
            for cited in message.citations
        ],
    )


def _citation_to_message(cited: Citation) -> Any:
    return m.Citation(event_id=cited.event_id, session_id=cited.session_id, timestamp_ms=cited.timestamp_ms)


# --- the table of contents --------------------------------------------------------------------------------


def node_message(node: TocNode) -> Any:
    """Convert a node to a message."""
    return m.TocNode(
        node_id=node.node_id,
        level=find_number(LEVEL_NAMES, node.level),
        title=node.title,
        summary=node.summary or None,
        bullets=[m.TocBullet(text=bullet.text, grip_ids=bullet.grip_ids) for bullet in node.bullets],
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
    """Convert a message to a node."""
    return TocNode(
        node_id=message.node_id,
        level=named(LEVEL_NAMES, message.level, "level"),
        title=message.title,
        status=message.status,
        summary=message.summary,
        bullets=[Bullet(text=bullet.text, grip_ids=list(bullet.grip_ids)) for bullet in message.bullets],
        keywords=list(message.keywords),
        agents=list(message.agents),
        parent_id=message.parent_id if message.HasField("parent_id") else None,
        child_node_ids=list(message.child_node_ids),
        start_time_ms=message.start_time_ms,
        end_time_ms=message.end_time_ms,
        version=message.version,
        error=message.error if message.HasField("error") else None,
    )


def expanded_message(expanded: ExpandedGrip) -> Any:
    """Convert an expanded grip to a message."""
    grip = expanded.grip
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
        events_before=map(event_message, expanded.events_before),
        excerpt_events=map(event_message, expanded.excerpt_events),
        events_after=map(event_message, expanded.events_after),
    )


def message_to_expanded(message: Any) -> ExpandedGrip:
    """Convert a message to an expanded grip."""
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
        events_before=[message_to_event(event) for event in message.events_before],
        excerpt_events=[message_to_event(event) for event in message.excerpt_events],
        events_after=[message_to_event(event) for event in message.events_after],
    )


def part_numbers(fields: Sequence[NodeField] | None) -> list[int]:
    """Return the numbers of the searched parts of a node; an empty list for all parts."""
    return [find_number(PARTS, check_choice(part, NODE_FIELDS, "fields")) for part in fields or ()]


def parse_parts(numbers: Any) -> list[NodeField] | None:
    """Return the searched parts of a node; None for all parts."""
    return [named(PARTS, number, "field") for number in numbers if number] or None


def match_messages(node: NodeMatches) -> list[Any]:
    """Convert the matches inside a node to messages."""
    return [
        m.SearchMatch(
            field=find_number(PARTS, match.part), text=match.text, grip_ids=match.grip_ids, score=match.score
        )
        for match in node.matches
    ]


def node_result(node: NodeMatches) -> Any:
    """Convert a node with matches to a message."""
    return m.SearchNodeResult(
        node_id=node.node_id,
        title=node.title,
        level=find_number(LEVEL_NAMES, node.level),
        matches=match_messages(node),
        relevance_score=node.relevance,
    )


def message_to_matches(message: Any, title: str = "") -> NodeMatches:
    """Convert a message to the matches inside one node; the reply of SearchNode has no title."""
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
    """Convert a message to the nodes with matches."""
    return ChildMatches(
        items=[
            msgspec.structs.replace(message_to_matches(node, node.title), relevance=node.relevance_score)
            for node in message.results
        ],
        has_more=message.has_more,
    )


def _message_to_match(message: Any) -> NodeMatch:
    part = named(PARTS, message.field, "field")
    return NodeMatch(part=part, text=message.text, score=message.score, grip_ids=list(message.grip_ids))
