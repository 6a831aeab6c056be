"""Service of the memory of one namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from perdure.jobs.model import new_job, row_to_job
from perdure.jobs.records import Job
from perdure.kernel.checks import (
    Id,
    Limit,
    check_choice,
    check_choices,
    check_id,
    check_number,
    check_page,
    check_text,
    optional_choice,
    optional_id,
)
from perdure.kernel.clock import to_iso_or_none
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.kernel.pages import Keyset, Part
from perdure.kernel.storage.fulltext import TextQuery, parse_query
from perdure.kernel.storage.port import Storage
from perdure.memory import calendar, model, nodes
from perdure.memory.calendar import LEVELS, Level
from perdure.memory.model import CheckedEvent, EventCursor, MemoryEventRow, check_event
from perdure.memory.node_search import matches_in, query_terms
from perdure.memory.operations import events as event_operations
from perdure.memory.operations import index as index_operations
from perdure.memory.operations import maintenance
from perdure.memory.operations import search as search_operations
from perdure.memory.operations import toc as toc_operations
from perdure.memory.operations.events import Stretch
from perdure.memory.operations.search import DocumentMatches, SearchPlan, TextSearch
from perdure.memory.records import (
    DOCUMENT_KINDS,
    NODE_FIELDS,
    SEARCH_MODES,
    ChildMatches,
    DocumentKind,
    ExpandedGrip,
    Ingested,
    MemoryEvent,
    MemoryPage,
    MemoryStats,
    NewMemoryEvent,
    NodeField,
    NodeMatches,
    SearchHit,
    SearchMode,
    SearchResult,
    TocNode,
)
from perdure.memory.search import (
    MAX_WEIGHT,
    check_weights,
    excerpt,
    mode_used,
    query_words,
)
from perdure.memory.vector_search import MemoryVectors
from perdure.service.base import Service
from perdure.service.callers import Caller
from perdure.service.endpoints import GET, MAX_BATCH, POST, call

MAX_BODY = 32 << 20
"""Limit of a request that ingests events."""
MAX_QUERY = 4096
MAX_HITS = 100
MAX_AROUND = 100
PAGE_BYTES = 4 << 20
"""Limit of text in a page of events; the first event may be longer."""
EXPAND_WINDOW_MS = 3_600_000
"""Range of time around a grip that `expand_grip` reads."""
REBUILD_JOB = "memory-rebuild"
GATHER_SECONDS = 0.004
"""Wait for concurrent callers, whose events are stored in one transaction."""
WORK = "/work"
"""Path prefix of the methods for workers."""

Milliseconds = Annotated[int, Meta(ge=0, le=model.LATEST_MS)]
Query = Annotated[str, Meta(max_length=MAX_QUERY)]
Hits = Annotated[int, Meta(ge=0, le=MAX_HITS)]
Weight = Annotated[float, Meta(ge=0, le=MAX_WEIGHT)]
Around = Annotated[int, Meta(ge=0, le=MAX_AROUND)]
Tokens = Annotated[int, Meta(ge=0, le=1_000_000)]
Fields = Annotated[list[NodeField], Meta(max_length=len(NODE_FIELDS))]


def _get_year_key(year: tuple[nodes.ShownNode, list[str]]) -> tuple[int]:
    """Return the key of a year in the order of their list."""
    node, _ = year
    return (node.start_ms,)


_YEARS = Keyset("years of memory", (2**62,), _get_year_key)


class Memory(Service):
    """Events of one namespace, the table of contents over them, and their search."""

    def __init__(
        self,
        storage: Storage,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
        vectors: MemoryVectors | None = None,
        max_event_bytes: int = model.MAX_EVENT_BYTES,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.vectors = vectors
        self.max_event_bytes = max_event_bytes

    # --- ingesting

    @call(POST("/memory/events"), scope="write", repeatable=True, max_body=MAX_BODY)
    async def ingest(self, event: NewMemoryEvent) -> Ingested:
        """Store an event, once for each `event_id`."""
        (answer,) = await self._ingest([check_event(event, self.max_event_bytes)])
        return answer

    @call(POST("/memory/events/batch"), scope="write", repeatable=True, max_body=MAX_BODY)
    async def ingest_many(
        self, events: Annotated[Sequence[NewMemoryEvent], Meta(max_length=MAX_BATCH)]
    ) -> list[Ingested]:
        """Store all of the events or none, each id once. Return the results in their order."""
        if len(events) > MAX_BATCH:
            raise InvalidInput(f"a batch has at most {MAX_BATCH} events, not {len(events)}")
        return await self._ingest([check_event(event, self.max_event_bytes) for event in events])

    async def find_known(self, event_ids: Sequence[str]) -> set[str]:
        """Return the ids that exist."""
        return {*await self.read(event_operations.get_events, event_ids)}

    async def _ingest(self, events: Sequence[CheckedEvent]) -> list[Ingested]:
        if not events:
            return []
        size = sum(event.size for event in events)
        answers: list[Ingested] = await self._merger.call(
            "ingest", self._ingest_batches, events, rows=len(events), size=size, gather=GATHER_SECONDS
        )
        return answers

    async def _ingest_batches(self, batches: Sequence[Sequence[CheckedEvent]]) -> list[list[Ingested]]:
        """Store the events of concurrent calls in one transaction; the first of equal ids counts."""
        first: dict[str, CheckedEvent] = {}
        for batch in batches:
            for event in batch:
                first.setdefault(event.row.id, event)
        events = [first[id] for id in sorted(first)]
        bodies = model.outbox_bodies([event.row for event in events])
        created = await self.write(event_operations.ingest, events, bodies)

        def answer(event: CheckedEvent) -> Ingested:
            id = event.row.id
            new = id in created and first[id] is event
            return Ingested(event_id=id, created=new)

        return [[answer(event) for event in batch] for batch in batches]

    # --- events

    @call(GET("/memory/events"), scope="read")
    async def get_events(
        self,
        *,
        from_ms: Milliseconds = 0,
        to_ms: Milliseconds = model.LATEST_MS,
        session_id: Id | None = None,
        limit: Limit = 100,
        after: str | None = None,
    ) -> MemoryPage[MemoryEvent]:
        """List the events between two times, both included, in order of time.

        A page ends after 4 MiB of text, whatever the limit; then `has_more` is true.
        """
        check_page(limit)
        low, high = model.check_time(from_ms, "from_ms"), model.check_time(to_ms, "to_ms")
        place = model.parse_place(after)
        stretch = Stretch(low, high, place, optional_id(session_id, "session_id"))
        rows, more = await self.read(event_operations.events_between, stretch, limit, PAGE_BYTES)
        return MemoryPage(
            items=[model.row_to_event(row) for row in rows],
            has_more=more,
            after=str(rows[-1].place) if rows else after,
        )

    # --- the table of contents

    @call(GET("/memory/toc"), scope="read")
    async def toc_root(self, *, limit: Limit = 100, cursor: str | None = None) -> Part[TocNode]:
        """List the years, latest first. `next` is the cursor of the next page."""
        request = _YEARS.open_part(limit, cursor)
        (last,) = request.place
        rows = await self.read(toc_operations.show_roots, last - 1, request.rows)
        return request.build_part(rows, lambda year: nodes.row_to_node(*year))

    @call(GET("/memory/toc/{node_id}"), scope="read", errors=(NotFound,))
    async def get_node(self, node_id: Id) -> TocNode:
        """Get a node: its last complete version, with the ids of its children."""
        rows = await self.read(toc_operations.show_nodes, [check_id(node_id, "node_id")])
        for row, children in rows:
            return nodes.row_to_node(row, children)
        raise NotFound(f"Node {node_id} not found")

    @call(GET("/memory/toc/{node_id}/children"), scope="read")
    async def browse(
        self, node_id: Id, *, limit: Limit = 20, after: str | None = None
    ) -> MemoryPage[TocNode]:
        """List the children of a node in order of time. A node that does not exist has none."""
        check_page(limit)
        place = parse_node_place(after)
        parent = check_id(node_id, "node_id")
        rows = await self.read(toc_operations.show_children, parent, place, limit + 1)
        shown = rows[:limit]
        last, _ = shown[-1] if shown else (None, [])
        return MemoryPage(
            items=[nodes.row_to_node(row, children) for row, children in shown],
            has_more=len(rows) > limit,
            after=after if last is None else str(EventCursor(last.start_ms, last.id)),
        )

    @call(GET("/memory/grips/{grip_id}"), scope="read", errors=(NotFound,))
    async def expand_grip(
        self, grip_id: Id, *, events_before: Around = 3, events_after: Around = 3
    ) -> ExpandedGrip:
        """Get a grip with its events, and the events of its session up to an hour before and after.

        The events before and the events after have at most 4 MiB of text each.
        """
        counts = (
            check_number(events_before, "events_before", most=MAX_AROUND),
            check_number(events_after, "events_after", most=MAX_AROUND),
        )
        wanted = check_id(grip_id, "grip_id")
        row = (await self.read(toc_operations.get_grips, [wanted])).get(wanted)
        if row is None:
            raise NotFound(f"Grip {grip_id} not found; it may have been deleted with its events")
        ids: list[str] = decode_json(row.event_ids)
        rows = await self.read(event_operations.get_events, ids)
        own = sorted((rows[id] for id in ids if id in rows), key=lambda event: event.place)
        before: list[MemoryEventRow] = []
        after: list[MemoryEventRow] = []
        if own:
            first, *_ = own
            ends = (first.place, own[-1].place)
            before, after = await self.read(
                toc_operations.around, row.session_id, ends, counts, EXPAND_WINDOW_MS, PAGE_BYTES
            )
        return ExpandedGrip(
            grip=nodes.row_to_grip(row, ids),
            events_before=[model.row_to_event(event) for event in before],
            excerpt_events=[model.row_to_event(event) for event in own],
            events_after=[model.row_to_event(event) for event in after],
        )

    # --- searching

    @call(GET("/memory/search"), scope="read")
    async def search(
        self,
        query: Query,
        *,
        mode: SearchMode = "hybrid",
        kind: DocumentKind | None = None,
        agent: str | None = None,
        since_ms: Milliseconds | None = None,
        until_ms: Milliseconds | None = None,
        limit: Hits = 10,
        text_weight: Weight = 0.5,
        vector_weight: Weight = 0.5,
    ) -> SearchResult:
        """Find events, nodes of the table of contents and grips, best first, each with its events.

        A query is words, `"phrases"`, `prefix*` and `-excluded` words. Documents with all of the words come
        first; if these are too few, documents with any of them follow. `vector` compares vectors. `hybrid`
        does both, with these weights. Without vectors both search by words only, and `mode_used` is `text`.
        """
        kinds = [optional_choice(kind, DOCUMENT_KINDS, "kind")]
        return await self.search_kinds(
            query,
            kinds,
            mode=mode,
            agent=agent,
            since_ms=since_ms,
            until_ms=until_ms,
            limit=limit,
            text_weight=text_weight,
            vector_weight=vector_weight,
        )

    async def search_kinds(
        self,
        query: str,
        kinds: Sequence[DocumentKind | None],
        *,
        mode: SearchMode = "hybrid",
        agent: str | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        limit: int = 10,
        text_weight: float = 0.5,
        vector_weight: float = 0.5,
    ) -> SearchResult:
        """Find documents of one of the kinds in one read transaction; None is any kind."""
        check_text(query, "query", max_length=4 * MAX_QUERY)
        check_choice(mode, SEARCH_MODES, "mode")
        check_number(limit, "limit", most=MAX_HITS)
        named = model.check_agent(agent)
        tag_sets = tuple(tuple(model.filter_tags(kind, named)) for kind in kinds)
        since = None if since_ms is None else model.check_time(since_ms, "since_ms")
        until = None if until_ms is None else model.check_time(until_ms, "until_ms")
        weights = check_weights(text_weight, vector_weight)
        parsed = parse_query(query)
        ns, vectors = await self.ns(), self.vectors
        vector, near = None, None
        while True:
            available = vectors is not None and vectors.has_any(ns)
            used = mode_used(mode, words=bool(parsed), vectors=available)
            most = limit if used != "hybrid" else 2 * limit
            if vectors is not None and used != "text" and parsed and limit:
                vector = vector or await vectors.embedder.of_query(query)
                near = await vectors.near(ns, vector, tag_sets, (since, until), most)
            ways = self._build_text_searches(parsed, tag_sets, (since, until), most) if limit else ()
            plan = SearchPlan(used, ways, limit, weights)
            matches = await self.read(search_operations.search_documents, plan, near)
            valid = vectors is None or await vectors.learn(ns, near, matches)
            if valid and available == (vectors is not None and vectors.has_any(ns)):
                break
        return SearchResult(
            items=_build_hits(matches, query_words(parsed)),
            mode_used=used,
            vector_available=available,
            documents=0 if matches.counter is None else matches.counter.documents,
        )

    def _build_text_searches(
        self,
        query: TextQuery,
        tag_sets: tuple[tuple[str, ...], ...],
        span: tuple[int | None, int | None],
        limit: int,
    ) -> tuple[tuple[TextSearch, ...], ...]:
        """Return the searches for all of the words, and for any of them."""
        if not query:
            return ()
        engine = self.storage.engine
        return tuple(
            tuple(
                TextSearch(query.match(engine, every=every, tags=tags), tags, *span, limit)
                for tags in tag_sets
            )
            for every in ((True, False) if len(query.terms) > 1 else (True,))
        )

    @call(POST(WORK + "/memory"), scope="worker", repeatable=True)
    async def search_for_agent(
        self,
        query: Query,
        *,
        mode: SearchMode = "hybrid",
        kind: DocumentKind | None = None,
        agent: str | None = None,
        since_ms: Milliseconds | None = None,
        until_ms: Milliseconds | None = None,
        limit: Hits = 10,
        text_weight: Weight = 0.5,
        vector_weight: Weight = 0.5,
    ) -> SearchResult:
        """Search memory for an agent of a worker."""
        return await self.search(
            query,
            mode=mode,
            kind=kind,
            agent=agent,
            since_ms=since_ms,
            until_ms=until_ms,
            limit=limit,
            text_weight=text_weight,
            vector_weight=vector_weight,
        )

    @call(GET("/memory/toc/{node_id}/search"), scope="read", errors=(NotFound,))
    async def search_node(
        self,
        node_id: Id,
        query: Query,
        *,
        fields: Fields | None = None,
        limit: Hits = 10,
        token_budget: Tokens = 0,
    ) -> NodeMatches:
        """Find the parts of one node that have words of a query; words of one or two letters do not count.

        With a `token_budget`, matches are returned until it is used up.
        """
        terms, parts = query_terms(query), _check_fields(fields)
        check_number(limit, "limit", most=MAX_HITS)
        return matches_in(await self.get_node(node_id), terms, parts, limit, token_budget)

    @call(GET("/memory/toc-search"), scope="read")
    async def search_children(
        self,
        query: Query,
        *,
        parent_id: str | None = None,
        level: Level | None = None,
        fields: Fields | None = None,
        limit: Hits = 10,
        token_budget: Tokens = 0,
    ) -> ChildMatches:
        """Find the children of a node that have words of a query, best first.

        Without a parent, search the nodes of a level, by default the years.
        """
        terms, parts = query_terms(query), _check_fields(fields)
        check_number(limit, "limit", most=MAX_HITS)
        matches: list[NodeMatches] = []
        for node in await self._list_children(optional_id(parent_id, "parent_id"), level):
            matched = matches_in(node, terms, parts, limit, token_budget)
            if matched.matches:
                matches.append(matched)
        matches.sort(key=lambda match: -match.relevance)
        return ChildMatches(items=matches[:limit], has_more=len(matches) > limit)

    async def _list_children(self, parent: str | None, level: Level | None) -> list[TocNode]:
        """Return the first 1,000 children of a node, or the latest nodes of a level."""
        if parent:
            rows = await self.read(toc_operations.show_children, parent, EventCursor(-(2**62)), 1000)
        else:
            number = LEVELS.index(check_choice(level or "year", LEVELS, "level")) + 1
            rows = await self.read(toc_operations.show_level, number, 2**62, 1000)
        return [nodes.row_to_node(row, children) for row, children in rows]

    # --- operating

    @call(GET("/memory/stats"), scope="read")
    async def stats(self) -> MemoryStats:
        """Get the size of memory."""
        row, counter = await self.read(index_operations.counts)
        return MemoryStats(
            path=row.path or ":memory:",
            events=row.events,
            toc_nodes=row.nodes,
            grips=row.grips,
            outbox=row.outbox,
            disk_bytes=row.disk_bytes,
            indexed=0 if counter is None else counter.documents,
            vectors=row.vectors,
            stale_nodes=row.stale,
            failed_nodes=row.failed,
            vectors_at=None if counter is None else to_iso_or_none(counter.embedded_at),
        )

    @call(POST("/memory/rebuild"), scope="admin", repeatable=True)
    async def rebuild(self, *, index: bool = True, toc: bool = True) -> Job:
        """Enqueue a job that cuts, summarises and indexes everything again.

        The job also summarises days that are not over. A node whose text stays the same gets no new version.
        """
        job = new_job(REBUILD_JOB, {"index": index, "toc": toc}, key="rebuild", timeout=86_400.0)
        return row_to_job(await self.write(maintenance.start_rebuild, job))


def _build_hits(matches: DocumentMatches, words: Sequence[str]) -> list[SearchHit]:
    keywords = {row.id: nodes.row_to_node(row).keywords for row in matches.shown}
    return [
        SearchHit(
            kind=check_choice(hit.kind, DOCUMENT_KINDS, "kind"),
            id=hit.id,
            score=hit.score,
            text=excerpt(hit.body, words),
            timestamp_ms=hit.timestamp_ms,
            agent=hit.agent,
            keywords=keywords.get(hit.id, []),
            events=[model.row_to_citation(row) for row in matches.cited[hit.id]],
        )
        for hit in matches.hits
    ]


def _check_fields(fields: Sequence[str] | None) -> Sequence[NodeField]:
    return NODE_FIELDS if not fields else check_choices(fields, NODE_FIELDS, "fields")


def parse_node_place(cursor: str | None) -> EventCursor:
    """Parse a cursor of the children of a node; None is the beginning."""
    if cursor is None:
        return EventCursor(-(2**62))
    ms, _, id = check_id(cursor, "after").partition(":")
    if not ms.removeprefix("-").isdecimal() or not ms.isascii() or calendar.parse_id(id) is None:
        raise InvalidInput(f"after is {cursor[:64]!r}; it must be the `after` value of an earlier page")
    return EventCursor(int(ms), id)
