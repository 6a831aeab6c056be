"""Build nodes of the table of contents: summarise segments and roll them up into longer periods."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from perdure.kernel.clock import to_micros
from perdure.kernel.codec import encode_json
from perdure.kernel.retry import Backoff
from perdure.kernel.storage.port import Storage
from perdure.memory import nodes
from perdure.memory.calendar import SEGMENT, build_title
from perdure.memory.grips import NewGrip, grip_for, inherited
from perdure.memory.model import INDEX_EVENT, MemoryEventRow
from perdure.memory.nodes import ChildNodeRow, ChildVersion, DueNodeRow, GripRow, NodeBody, TocNodeRow
from perdure.memory.operations import builds
from perdure.memory.operations.builds import Built, DueNodeCursor
from perdure.memory.records import EVENT_ROLES, Bullet
from perdure.memory.summarisers.port import Child, NoEvents, Said, Summariser, SummariserError
from perdure.outbox.model import error_text

BUILD_SECONDS = 900.0
"""A node counts as being built for this long after its process stopped."""
CHILD_ROWS = 200
MOST_CHILDREN = 2000
"""Maximum number of children in a summary; later children are left out."""
FOR_EVER = 2**62

logger = logging.getLogger(__name__)


class BuildOutcome(NamedTuple):
    """Counts of one build run: nodes with a new version, nodes without one, and failed nodes."""

    built: int = 0
    unchanged: int = 0
    failed: int = 0


class TocBuilder:
    """Builder of due nodes. Each node is stored before the next one starts.

    The `builder` argument is the id of the job: after a crash, the next attempt of the same job continues at
    once. Another job waits until the lease of the first job ends.
    """

    def __init__(self, storage: Storage, summariser: Summariser) -> None:
        self.storage = storage
        self.summariser = summariser

    async def build_due(
        self,
        level: int,
        job: str,
        builder: str,
        *,
        min_age: float | None = None,
        rest: float = 0.0,
        ns: int | None = None,
    ) -> BuildOutcome:
        """Build the stale nodes of a level that ended `min_age` seconds ago, in one namespace or all.

        A node is due if it has not changed for `rest` seconds. An error of the summariser ends the run;
        finished nodes stay, and the next run continues.
        """
        built = unchanged = failed = 0
        place = DueNodeCursor()
        while True:
            age = None if min_age is None else to_micros(min_age)
            due = await self.storage.read(builds.due, level, age, to_micros(rest), place, ns=ns)
            for row in due:
                try:
                    new_version = await self._build(row, job, builder)
                except SummariserError as error:
                    if not error.of_node:
                        raise
                    failed += 1
                    continue
                built += new_version is True
                unchanged += new_version is False
            if len(due) < builds.DUE_ROWS:
                return BuildOutcome(built, unchanged, failed)
            last = due[-1]
            place = DueNodeCursor(last.end_ms, last.ns, last.id)

    async def _build(self, due: DueNodeRow, job: str, builder: str) -> bool | None:
        """Build a node. Return True for a new version, False for none, None if another job builds it."""
        ns = due.ns
        if due.level != SEGMENT and not await self.storage.run(builds.refresh, due.id, ns=ns):
            return False
        row = await self.storage.run(builds.start, due.id, builder, to_micros(BUILD_SECONDS), ns=ns)
        if row is None:
            return None
        try:
            build = self._build_segment if row.level == SEGMENT else self._build_parent
            done = await build(row, ns)
            version = await self.storage.run(builds.finish, done._replace(builder=builder, job=job), ns=ns)
        except Exception as error:
            wait = Backoff(*nodes.RETRY_SECONDS).delay(row.tries + 1)
            text = str(error) if isinstance(error, SummariserError) else error_text(error)
            await self.storage.run(builds.fail, due.id, builder, text, to_micros(wait), ns=ns)
            logger.warning("%s could not be summarised: %s", due.id, text)
            raise
        return None if version is None else version > row.version

    # --- segments -----------------------------------------------------------------------------------------

    async def _build_segment(self, row: TocNodeRow, ns: int) -> Built:
        content = await self.storage.read(builds.segment_content, row, ns=ns)
        if not content.events:
            raise NoEvents(f"{row.id} has no events")
        own = [_row_to_said(event) for event in content.events]
        repeated = [_row_to_said(event, repeated=True) for event in content.repeated]
        summary = await self.summariser.summarise([*repeated, *own])
        grips = await asyncio.to_thread(lambda: [grip_for(row.id, text, own) for text in summary.bullets])
        bullets = [
            Bullet(text=text, grip_ids=[grip.id]) for text, grip in zip(summary.bullets, grips, strict=True)
        ]
        agents = sorted({event.agent for event in content.events if event.agent})
        rows = {grip.id: _build_grip_row(grip, row.id) for grip in grips}
        agents_by_event = {event.id: event.agent for event in content.events}
        texts = tuple(
            nodes.grip_text(rows[grip.id], agents_by_event[next(iter(grip.event_ids))])
            for grip in {grip.id: grip for grip in grips}.values()
        )
        body = NodeBody(bullets=bullets, keywords=[*summary.keywords], agents=agents)
        return _build_result(row, summary.title, body)._replace(
            made_of=row.content, grips=tuple(rows.values()), grip_texts=texts
        )

    # --- roll-ups -----------------------------------------------------------------------------------------

    async def _build_parent(self, row: TocNodeRow, ns: int) -> Built:
        rows = await self._list_children(row.id, ns)
        bodies = [nodes.decode_node_body(child.body) for child in rows]
        children = [
            Child(child.id, child.title, [bullet.text for bullet in body.bullets], body.keywords)
            for child, body in zip(rows, bodies, strict=True)
        ]
        title = build_title(row.id)
        summary = await self.summariser.roll_up(title, children)
        grips = [[bullet.grip_ids for bullet in body.bullets] for body in bodies]
        bullets = [Bullet(text=text, grip_ids=inherited(text, children, grips)) for text in summary.bullets]
        agents = sorted({agent for body in bodies for agent in body.agents})
        body = NodeBody(bullets=bullets, keywords=[*summary.keywords], agents=agents)
        made_of = nodes.versions_digest(ChildVersion(child.id, child.version) for child in rows)
        return _build_result(row, title, body)._replace(made_of=made_of)

    async def _list_children(self, parent: str, ns: int) -> list[ChildNodeRow]:
        children: list[ChildNodeRow] = []
        after = (-FOR_EVER, "")
        while len(children) < MOST_CHILDREN:
            rows = await self.storage.read(builds.child_texts, parent, after, CHILD_ROWS, ns=ns)
            children += rows
            if len(rows) < CHILD_ROWS:
                break
            after = (rows[-1].start_ms, rows[-1].id)
        return children


def _row_to_said(event: MemoryEventRow, *, repeated: bool = False) -> Said:
    return Said(
        event_id=event.id,
        session_id=event.session_id,
        timestamp_ms=event.timestamp_ms,
        role=EVENT_ROLES[event.role - 1],
        agent=event.agent,
        text=event.body,
        repeated=repeated,
    )


def _build_grip_row(grip: NewGrip, node_id: str) -> GripRow:
    return GripRow(
        id=grip.id,
        node_id=node_id,
        timestamp_ms=grip.timestamp_ms,
        session_id=grip.session_id,
        source=grip.source,
        event_ids=encode_json(list(grip.event_ids)),
        excerpt=grip.excerpt,
    )


def _build_result(row: TocNodeRow, title: str, body: NodeBody) -> Built:
    return Built(
        node_id=row.id,
        builder="",
        job="",
        made_of="",
        title=title,
        body=nodes.encode_body(body),
        text=nodes.node_text(row.id, row.start_ms, title, body),
        effect=encode_json({"action": INDEX_EVENT, "node": row.id}),
    )
