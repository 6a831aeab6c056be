"""The service of memory: the methods of agent-memory, and batches and streams of events beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import grpc

from perdure.access.model import Caller, Scope
from perdure.kernel.errors import InvalidInput
from perdure.memory import message_records as wire
from perdure.memory import messages as m
from perdure.memory.records import DocumentKind, SearchResult
from perdure.runtime.app import App
from perdure.runtime.services import Services
from perdure.server.grpc.calls import Calls, Requests, parse

MEMORY_SERVICE = m.SERVICE
FILE = m.Event.DESCRIPTOR.file
IDLE_SECONDS = 300.0
"""How long a stream may bring nothing before it ends."""
WINDOW = 8
"""How many batches of a stream are being stored at once."""
EVENTS_PAGE = 50
HITS = 10
MOST_EVENTS = 1000
MOST_HITS = 100

Answer = Callable[[Services, Any], Awaitable[Any]]


class Method(NamedTuple):
    """A method: the message that it takes, the scope that it needs, and its answer."""

    request: Any
    scope: Scope
    answer: Answer


# --- events -----------------------------------------------------------------------------------------------


async def ingest_event(services: Services, request: Any) -> Any:
    if not request.HasField("event"):
        raise InvalidInput("Event is required")
    return wire.ingested_message(await services.memory.ingest(wire.new_event_of(request.event)))


async def ingest_events(services: Services, request: Any) -> Any:
    answers = await services.memory.ingest_many([wire.new_event_of(event) for event in request.events])
    return m.IngestEventsResponse(results=map(wire.ingested_message, answers))


async def get_events(services: Services, request: Any) -> Any:
    page = await services.memory.get_events(
        from_ms=request.from_timestamp_ms,
        to_ms=request.to_timestamp_ms,
        limit=_limit(request.limit, EVENTS_PAGE, MOST_EVENTS),
    )
    return m.GetEventsResponse(events=map(wire.event_message, page.items), has_more=page.has_more)


# --- searching --------------------------------------------------------------------------------------------


async def teleport_search(services: Services, request: Any) -> Any:
    """Full-text search. An empty query finds nothing, as in agent-memory."""
    found = await services.memory.search(
        request.query,
        mode="text",
        kind=wire.kind_of(request.doc_type),
        agent=_optional(request, "agent_filter"),
        limit=_limit(request.limit, HITS, MOST_HITS),
    )
    return m.TeleportSearchResponse(
        results=map(wire.teleport_result, found.items), total_docs=found.documents
    )


async def hybrid_search(services: Services, request: Any) -> Any:
    found = await _search(services, request, wire.named(wire.MODES, request.mode, "search mode"))
    return m.HybridSearchResponse(
        matches=map(wire.match_message, found.items),
        mode_used=wire.number_of(wire.MODES, found.mode_used),
        bm25_available=found.text_available,
        vector_available=found.vector_available,
    )


async def _search(services: Services, request: Any, mode: Any) -> SearchResult:
    if not request.query.strip():
        raise InvalidInput("query is required")
    kind: DocumentKind | None = wire.kind_of(request.target)
    since, until = wire.times_of(request)
    return await services.memory.search(
        request.query,
        mode=mode,
        kind=kind,
        agent=_optional(request, "agent_filter"),
        since_ms=since,
        until_ms=until,
        limit=_limit(request.top_k, HITS, MOST_HITS),
    )


METHODS = {
    "IngestEvent": Method(m.IngestEventRequest, "write", ingest_event),
    "IngestEvents": Method(m.IngestEventsRequest, "write", ingest_events),
    "GetEvents": Method(m.GetEventsRequest, "read", get_events),
    "TeleportSearch": Method(m.TeleportSearchRequest, "read", teleport_search),
    "HybridSearch": Method(m.HybridSearchRequest, "read", hybrid_search),
}
"""The methods with one message and one answer; any other is UNIMPLEMENTED."""


def _limit(given: int, default: int, most: int) -> int:
    return default if given <= 0 else min(given, most)


def _optional(request: Any, name: str) -> Any:
    return getattr(request, name) or None if request.HasField(name) else None


# --- the service ------------------------------------------------------------------------------------------


class MemoryServicer:
    """Answers the calls of memory in the names of their callers."""

    def __init__(self, calls: Calls, app: App) -> None:
        self._calls = calls
        self._app = app
        self._stopping = asyncio.Event()

    def handlers(self) -> Any:
        """The handlers of all methods."""
        handlers = {name: self._unary(method) for name, method in METHODS.items()}
        handlers["StreamEvents"] = self._calls.stream("write", self._stream_events)
        return grpc.method_handlers_generic_handler(MEMORY_SERVICE, handlers)

    def end_streams(self) -> None:
        """Take no more from streams; what has come is stored and acknowledged."""
        self._stopping.set()

    def _unary(self, method: Method) -> Any:
        async def answer(caller: Caller, data: bytes) -> bytes:
            request = parse(method.request, data)
            made = await method.answer(self._app.services.acting_as(caller), request)
            encoded: bytes = made.SerializeToString()
            return encoded

        return self._calls.unary(method.scope, answer)

    async def _stream_events(self, caller: Caller, requests: Requests) -> AsyncIterator[bytes]:
        """Store each batch that comes, several at once, and acknowledge them in their order."""
        services = self._app.services.acting_as(caller)
        window: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(WINDOW)
        tasks: set[asyncio.Task[Any]] = set()

        async def read() -> None:
            try:
                while (data := await self._next(requests)) is not None:
                    request = parse(m.IngestEventsRequest, data)
                    batch = asyncio.create_task(ingest_events(services, request))
                    tasks.add(batch)
                    await window.put(batch)
            except Exception:
                await window.put(None)
                raise
            await window.put(None)

        reading = asyncio.create_task(read())
        try:
            while (batch := await window.get()) is not None:
                yield (await batch).SerializeToString()
                tasks.discard(batch)
            await reading
        finally:
            for task in (reading, *tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self, requests: Requests) -> bytes | None:
        """The next message of a stream; None when it ends, is idle for too long, or the server stops."""
        coming = asyncio.ensure_future(anext(requests, None))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((coming, stopping), timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()
            stopping.cancel()
