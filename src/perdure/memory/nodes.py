"""Nodes of the table of contents: statuses, rows and records. This module is pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple, cast, get_args

import msgspec

from perdure.kernel.codec import encode_json
from perdure.kernel.machine import Machine
from perdure.memory import calendar
from perdure.memory.calendar import LEVELS, build_title, parse_id
from perdure.memory.model import EventCursor, TextRow, build_tags
from perdure.memory.records import Bullet, Grip, NodeStatus, TocNode
from perdure.memory.segments import MemorySegment

NODE_STATUSES: Final[tuple[NodeStatus, ...]] = get_args(NodeStatus)
DRAFT, BUILDING, COMPLETE, FAILED = NODE_STATUSES

TOC_NODE = (
    Machine("toc node", NODE_STATUSES, start={"created": DRAFT}, final=[])
    # A repeated attempt, also after a lost process, starts the build over.
    .on("start", [DRAFT, BUILDING, COMPLETE, FAILED], BUILDING)
    .on("built", [BUILDING], COMPLETE)
    .on("failed", [BUILDING], FAILED)
)

PENDING_TEXT: Final = "Summary pending."
NODE_KIND: Final = "node"
GRIP_KIND: Final = "grip"
AGAIN: Final = "!"
"""Prefix of `built_from` of a node that must be built again from the same content."""
RETRY_SECONDS: Final = (60.0, 86_400.0)
"""The first and the longest wait before the next try after a failed build."""


# --- rows -------------------------------------------------------------------------------------------------


class TocNodeRow(NamedTuple):
    """A row of `memory_nodes`."""

    id: str
    level: int
    parent_id: str | None
    start_ms: int
    end_ms: int
    status: str
    version: int
    stale: int
    changed_at: int
    retry_at: int | None
    builder: str | None
    building_until: int | None
    tries: int
    built_from: str | None
    error: str | None
    first_id: str | None
    last_id: str | None
    events: int
    tokens: int
    dirty_ms: int | None
    dirty_id: str | None
    dirty_end_ms: int | None

    @property
    def content(self) -> str:
        """Short digest of a segment's events; differs if other events belong to the segment."""
        return f"{self.first_id}:{self.last_id}:{self.events}"

    @property
    def place(self) -> EventCursor:
        """The position where a segment begins."""
        return EventCursor(self.start_ms, self.first_id or "")


class ShownNode(NamedTuple):
    """A node with the text of its latest complete version."""

    id: str
    level: int
    parent_id: str | None
    start_ms: int
    end_ms: int
    status: str
    version: int
    error: str | None
    title: str | None
    body: str | None


class ChildNodeRow(NamedTuple):
    """A child that has a complete version, with its text."""

    id: str
    start_ms: int
    version: int
    title: str
    body: str


class ChildVersion(NamedTuple):
    """A child with the number of its latest complete version."""

    id: str
    version: int


class ChildId(NamedTuple):
    """A child of a node."""

    parent_id: str
    id: str


class DueNodeRow(NamedTuple):
    """A node that may be due to be built."""

    ns: int
    id: str
    level: int
    end_ms: int
    changed_at: int


class NodeVersionRow(NamedTuple):
    """A version of a node as it is written."""

    node_id: str
    version: int
    created_at: int
    title: str
    body: str


class GripRow(NamedTuple):
    """A row of `memory_grips`; `event_ids` is JSON."""

    id: str
    node_id: str
    timestamp_ms: int
    session_id: str
    source: str
    event_ids: str
    excerpt: str


class BuildProgressRow(NamedTuple):
    """The progress of a job."""

    job: str
    level: int
    node_id: str
    last_processed_ms: int
    processed: int
    created_at: int


# --- making and changing ----------------------------------------------------------------------------------


def new_node(node_id: str, now: int) -> TocNodeRow:
    """Build an empty day, week, month or year. Its boundaries follow from its id."""
    period = parse_id(node_id)
    assert period is not None
    return TocNodeRow(
        id=node_id,
        level=period.level,
        parent_id=calendar.get_parent_id(node_id),
        start_ms=period.start_ms,
        end_ms=period.end_ms,
        status=TOC_NODE.start["created"],
        version=0,
        stale=0,
        changed_at=now,
        retry_at=None,
        builder=None,
        building_until=None,
        tries=0,
        built_from=None,
        error=None,
        first_id=None,
        last_id=None,
        events=0,
        tokens=0,
        dirty_ms=None,
        dirty_id=None,
        dirty_end_ms=None,
    )


def segment_node(segment: MemorySegment, now: int) -> TocNodeRow:
    """Build the stale node of a segment."""
    return new_node(segment.id, now)._replace(
        start_ms=segment.first.timestamp_ms,
        end_ms=segment.last.timestamp_ms,
        stale=1,
        first_id=segment.first.id,
        last_id=segment.last.id,
        events=segment.events,
        tokens=segment.tokens,
    )


def started(row: TocNodeRow, builder: str, until: int) -> TocNodeRow:
    """Return the node with a started build."""
    status = TOC_NODE.step(row.status, "start")
    return row._replace(status=status, builder=builder, building_until=until)


def is_taken(row: TocNodeRow, builder: str, now: int) -> bool:
    """Return whether another builder holds the node."""
    return (
        row.status == BUILDING
        and row.builder != builder
        and row.building_until is not None
        and row.building_until > now
    )


def built(row: TocNodeRow, built_from: str, *, version: int, stale: bool) -> TocNodeRow:
    """Return the node after a build; `stale` if it changed meanwhile."""
    return row._replace(
        status=TOC_NODE.step(row.status, "built"),
        version=version,
        stale=int(stale),
        retry_at=None,
        builder=None,
        building_until=None,
        tries=0,
        built_from=built_from,
        error=None,
    )


def failed(row: TocNodeRow, error: str, retry_at: int) -> TocNodeRow:
    """Return the node after a failed build: its text stays, and it is tried again at `retry_at`."""
    return row._replace(
        status=TOC_NODE.step(row.status, "failed"),
        retry_at=retry_at,
        builder=None,
        building_until=None,
        tries=row.tries + 1,
        error=error,
    )


def built_again(row: TocNodeRow, now: int) -> TocNodeRow:
    """Return the node marked to be built again from the same content."""
    again = AGAIN + (row.built_from or "")
    return row._replace(stale=1, built_from=again, retry_at=None, changed_at=now)


def made_of_before(row: TocNodeRow) -> str | None:
    """Return the content digest of the last version of a node."""
    return None if row.built_from is None else row.built_from.removeprefix(AGAIN)


def versions_digest(children: Iterable[ChildVersion]) -> str:
    """Return a digest of children and versions; differs if a child is added, removed or rebuilt."""
    text = "\n".join(f"{child.id} {child.version}" for child in sorted(children))
    return sha256(text.encode()).hexdigest()[:32]


# --- texts ------------------------------------------------------------------------------------------------


class NodeBody(msgspec.Struct, frozen=True, kw_only=True):
    """The stored text of a node's version."""

    bullets: list[Bullet]
    keywords: list[str]
    agents: list[str] = msgspec.field(default_factory=list)


_bodies = msgspec.json.Decoder(NodeBody)


def decode_node_body(text: str) -> NodeBody:
    """Decode the stored text of a version."""
    return _bodies.decode(text)


def grip_ids(row: ShownNode) -> list[str]:
    """Return the grips of all lines of a node."""
    bullets = [] if row.body is None else decode_node_body(row.body).bullets
    return list(dict.fromkeys(id for bullet in bullets for id in bullet.grip_ids))


def encode_body(body: NodeBody) -> str:
    return encode_json(body)


def node_text(row_id: str, start_ms: int, title: str, body: NodeBody) -> TextRow:
    """Build the searchable document of a node."""
    lines = [title, *(bullet.text for bullet in body.bullets), " ".join(body.keywords)]
    agent = body.agents[-1] if len(body.agents) == 1 else None
    tags = build_tags(NODE_KIND, body.agents)
    return TextRow(row_id, NODE_KIND, start_ms, agent, None, tags, "\n".join(lines))


def grip_text(grip: GripRow, agent: str | None) -> TextRow:
    """Build the searchable document of a grip."""
    tags = build_tags(GRIP_KIND, [agent] if agent else [])
    return TextRow(grip.id, GRIP_KIND, grip.timestamp_ms, agent, None, tags, grip.excerpt)


# --- views for readers ------------------------------------------------------------------------------------


def row_to_node(row: ShownNode, children: Sequence[str] = ()) -> TocNode:
    """Convert a row to a node: its last complete version, or a placeholder before the first."""
    body = None if row.body is None else decode_node_body(row.body)
    bullets = [Bullet(text=PENDING_TEXT)] if body is None else body.bullets
    return TocNode(
        node_id=row.id,
        level=LEVELS[row.level - 1],
        title=build_title(row.id) if row.title is None else row.title,
        status=cast(NodeStatus, row.status),
        summary=" ".join(bullet.text for bullet in bullets),
        bullets=bullets,
        keywords=[] if body is None else body.keywords,
        agents=[] if body is None else body.agents,
        parent_id=row.parent_id,
        child_node_ids=list(children),
        start_time_ms=row.start_ms,
        end_time_ms=row.end_ms,
        version=max(1, row.version),
        error=row.error,
    )


def row_to_grip(row: GripRow, event_ids: Sequence[str]) -> Grip:
    """Convert a row to a grip."""
    return Grip(
        grip_id=row.id,
        node_id=row.node_id,
        session_id=row.session_id,
        timestamp_ms=row.timestamp_ms,
        excerpt=row.excerpt,
        event_id_start=next(iter(event_ids)),
        event_id_end=event_ids[-1],
        event_ids=list(event_ids),
        source=row.source,
    )
