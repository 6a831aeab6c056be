"""The memory of one namespace: what happened, in the order of its time, and the search over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from perdure.access.base import Service
from perdure.access.endpoints import GET, MAX_BATCH, POST, call
from perdure.kernel.checks import (
    Id,
    Limit,
    check_choice,
    check_number,
    check_page,
    check_text,
    optional_choice,
    optional_id,
)
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.fulltext import TextQuery, parse_query
from perdure.memory import model, operations
from perdure.memory.model import CheckedEvent, EventRow, HitRow, check_event
from perdure.memory.operations import Stretch, TextSearch
from perdure.memory.records import (
    DOCUMENT_KINDS,
    SEARCH_MODES,
    Citation,
    DocumentKind,
    EventPage,
    Ingested,
    NewMemoryEvent,
    SearchHit,
    SearchMode,
    SearchResult,
)
from perdure.memory.search import best, excerpt, query_words

MAX_BODY = 32 << 20
"""How large a batch of events may be over HTTP."""
MAX_QUERY = 4096
MAX_HITS = 100
PAGE_BYTES = 4 << 20
"""How much text a page of events holds, unless its first event is longer."""
PAGE_ROWS = 100

Milliseconds = Annotated[int, Meta(ge=0, le=model.LATEST_MS)]
Query = Annotated[str, Meta(max_length=MAX_QUERY)]
Hits = Annotated[int, Meta(ge=0, le=MAX_HITS)]


class Memory(Service):
    """The events of one namespace, and what can be found in them."""

    # --- ingesting

    @call(POST("/memory/events"), scope="write", repeatable=True)
    async def ingest(self, event: NewMemoryEvent) -> Ingested:
        """Store an event, once for each `event_id`."""
        (answer,) = await self._ingest([check_event(event)])
        return answer

    @call(POST("/memory/events/batch"), scope="write", repeatable=True, max_body=MAX_BODY)
    async def ingest_many(
        self, events: Annotated[Sequence[NewMemoryEvent], Meta(max_length=MAX_BATCH)]
    ) -> list[Ingested]:
        """Store events, each once, all or none of them; answers in their order."""
        if len(events) > MAX_BATCH:
            raise InvalidInput(f"a batch has at most {MAX_BATCH} events, not {len(events)}")
        return await self._ingest([check_event(event) for event in events])

    async def _ingest(self, events: Sequence[CheckedEvent]) -> list[Ingested]:
        if not events:
            return []
        size = sum(each.size for each in events)
        answers: list[Ingested] = await self._merger.call(
            "ingest", self._ingest_batches, events, rows=len(events), size=size
        )
        return answers

    async def _ingest_batches(self, batches: Sequence[Sequence[CheckedEvent]]) -> list[list[Ingested]]:
        """Store the events of concurrent calls in one transaction; the first of equal ids counts."""
        first: dict[str, CheckedEvent] = {}
        for batch in batches:
            for each in batch:
                first.setdefault(each.row.id, each)
        events = [first[id] for id in sorted(first)]
        bodies = model.outbox_bodies([each.row for each in events])
        created = await self.write(operations.ingest, events, bodies)

        def answer(event: CheckedEvent) -> Ingested:
            id = event.row.id
            new = id in created and first[id] is event
            return Ingested(event_id=id, created=new)

        return [[answer(each) for each in batch] for batch in batches]

    # --- reading

    @call(GET("/memory/events"), scope="read")
    async def get_events(
        self,
        *,
        from_ms: Milliseconds = 0,
        to_ms: Milliseconds = model.LATEST_MS,
        session_id: Id | None = None,
        limit: Limit = 100,
        after: str | None = None,
    ) -> EventPage:
        """List the events of a stretch of time, both ends included, in the order of their time.

        A page ends after 4 MiB of text, whatever the limit; `has_more` says so.
        """
        check_page(limit)
        low, high = model.check_time(from_ms, "from_ms"), model.check_time(to_ms, "to_ms")
        place = model.parse_place(after)
        stretch = Stretch(low, high, place, optional_id(session_id, "session_id"))
        rows, more = await self._events(stretch, limit)
        last = model.EventPlace(rows[-1].timestamp_ms, rows[-1].id) if rows else place
        return EventPage(
            items=[model.event_of(row) for row in rows],
            has_more=more,
            after=str(last) if rows else after,
        )

    async def _events(self, stretch: Stretch, limit: int) -> tuple[list[EventRow], bool]:
        """Events up to the limit or the size of a page, and whether there are more."""
        found: list[EventRow] = []
        size = 0
        while True:
            wanted = min(limit - len(found), PAGE_ROWS) + 1
            rows = await self.read(operations.events_between, stretch, wanted)
            for row in rows:
                size += len(row.body)
                if len(found) == limit or (found and size > PAGE_BYTES):
                    return found, True
                found.append(row)
            if len(rows) < wanted:
                return found, False
            stretch = stretch._replace(after=model.EventPlace(found[-1].timestamp_ms, found[-1].id))

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
    ) -> SearchResult:
        """Find events, nodes of the table of contents and grips, the best first, each with its events.

        A query is words, `"phrases"`, `prefix*` and `-excluded` words. What has all of the words comes first;
        if that is too little, what has any of them. `hybrid` also compares vectors, where there are any.
        """
        check_text(query, "query", max_length=4 * MAX_QUERY)
        check_choice(mode, SEARCH_MODES, "mode")
        check_number(limit, "limit", most=MAX_HITS)
        tags = model.filter_tags(optional_choice(kind, DOCUMENT_KINDS, "kind"), model.check_agent(agent))
        since = None if since_ms is None else model.check_time(since_ms, "since_ms")
        until = None if until_ms is None else model.check_time(until_ms, "until_ms")
        wanted = TextSearch("", tuple(tags), since, until, limit)
        parsed = parse_query(query)
        hits = await self._matching(parsed, wanted) if parsed and limit else []
        counter = await self.read(operations.get_counter)
        return SearchResult(
            items=await self._shown(hits, query_words(parsed)),
            mode_used="text",
            documents=0 if counter is None else counter.documents,
        )

    async def _matching(self, query: TextQuery, wanted: TextSearch) -> list[HitRow]:
        """What has all of the words, or else any of them."""
        engine = self.storage.engine
        every = wanted._replace(match=query.match(engine, every=True, tags=wanted.tags))
        found = await self.read(operations.search_texts, every)
        if len(found) >= wanted.limit or len(query.terms) == 1:
            return found
        some = wanted._replace(match=query.match(engine, every=False, tags=wanted.tags))
        return best([*found, *await self.read(operations.search_texts, some)], wanted.limit)

    async def _shown(self, hits: Sequence[HitRow], words: Sequence[str]) -> list[SearchHit]:
        cited = await self.read(operations.cited, [hit.id for hit in hits if hit.kind == model.EVENT])
        return [
            SearchHit(
                kind=check_choice(hit.kind, DOCUMENT_KINDS, "kind"),
                id=hit.id,
                score=hit.score,
                text=excerpt(hit.body, words),
                timestamp_ms=hit.timestamp_ms,
                agent=hit.agent,
                events=[
                    Citation(event_id=row.id, session_id=row.session_id, timestamp_ms=row.timestamp_ms)
                    for row in [cited[hit.id]]
                ]
                if hit.id in cited
                else [],
            )
            for hit in hits
        ]
