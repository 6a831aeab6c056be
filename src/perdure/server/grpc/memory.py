"""The memory service: the methods of agent-memory, plus batches and streams of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import grpc

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import AgentUnavailable, Conflict, InvalidInput, NotFound
from perdure.memory import message_records as wire
from perdure.memory import messages as m
from perdure.memory.records import SearchResult
from perdure.memory.service import MAX_AROUND, parse_node_place
from perdure.runtime.app import App
from perdure.runtime.services import Services
from perdure.schedules.records import JobStatus
from perdure.server.grpc.calls import Calls, Requests, parse
from perdure.service.callers import Caller, Scope

MEMORY_SERVICE = m.SERVICE
FILE = m.Event.DESCRIPTOR.file
IDLE_SECONDS = 300.0
"""Idle time after which a stream ends."""
WINDOW = 8
"""Number of batches of one stream that are stored concurrently."""
EVENTS_PAGE = 50
HITS = 10
WEIGHT = 0.5
MOST_EVENTS = 1000
MOST_HITS = 100
NODES_PAGE = 20
MOST_NODES = 1000
MOST_TOKENS = 1_000_000
AROUND = 3
JOBS_PAGE = 1000
MOST_JOBS = 10_000
RESULTS = {"success": 1, "failed": 2, "skipped": 3}
"""Numbers of JobResultStatus."""

Answer = Callable[[Services, Any], Awaitable[Any]]


class Method(NamedTuple):
    """A method: its request type, its scope and the function that answers it."""

    request: Any
    scope: Scope
    answer: Answer


# --- events -----------------------------------------------------------------------------------------------


async def ingest_event(services: Services, request: Any) -> Any:
    if not request.HasField("event"):
        raise InvalidInput("Event is required")
    return wire.ingested_message(await services.memory.ingest(wire.message_to_new_event(request.event)))


async def ingest_events(services: Services, request: Any) -> Any:
    answers = await services.memory.ingest_many(
        [wire.message_to_new_event(event) for event in request.events]
    )
    return m.IngestEventsResponse(results=map(wire.ingested_message, answers))


async def get_events(services: Services, request: Any) -> Any:
    page = await services.memory.get_events(
        from_ms=request.from_timestamp_ms,
        to_ms=request.to_timestamp_ms,
        limit=_limit(request.limit, EVENTS_PAGE, MOST_EVENTS),
    )
    return m.GetEventsResponse(events=map(wire.event_message, page.items), has_more=page.has_more)


# --- the table of contents --------------------------------------------------------------------------------


async def get_toc_root(services: Services, request: Any) -> Any:
    return m.GetTocRootResponse(
        nodes=map(wire.node_message, await services.memory.toc_root(limit=MOST_NODES))
    )


async def get_node(services: Services, request: Any) -> Any:
    """Return a node, or an empty response if it does not exist."""
    try:
        node = await services.memory.get_node(_named(request, "node_id"))
    except NotFound:
        return m.GetNodeResponse()
    return m.GetNodeResponse(node=wire.node_message(node))


async def browse_toc(services: Services, request: Any) -> Any:
    """Return the children of a node. An invalid continuation token restarts from the first page."""
    token = _optional(request, "continuation_token")
    try:
        parse_node_place(token)
    except InvalidInput:
        token = None
    limit = _limit(request.limit, NODES_PAGE, MOST_NODES)
    page = await services.memory.browse(_named(request, "parent_id"), limit=limit, after=token)
    return m.BrowseTocResponse(
        children=map(wire.node_message, page.items),
        continuation_token=page.after if page.has_more else None,
        has_more=page.has_more,
    )


async def expand_grip(services: Services, request: Any) -> Any:
    """Return a grip with its events, or an empty response if it does not exist."""
    try:
        expanded = await services.memory.expand_grip(
            _named(request, "grip_id"),
            events_before=_around(request, "events_before"),
            events_after=_around(request, "events_after"),
        )
    except NotFound:
        return m.ExpandGripResponse()
    return wire.expanded_message(expanded)


# --- searching --------------------------------------------------------------------------------------------


async def teleport_search(services: Services, request: Any) -> Any:
    """Search the full text. As in agent-memory, an empty query has no results."""
    result = await services.memory.search_kinds(
        request.query,
        wire.parse_kinds(request.doc_type),
        mode="text",
        agent=_optional(request, "agent_filter"),
        limit=_limit(request.limit, HITS, MOST_HITS),
    )
    return m.TeleportSearchResponse(
        results=map(wire.teleport_result, result.items), total_docs=result.documents
    )


async def vector_teleport(services: Services, request: Any) -> Any:
    if not -1 <= request.min_score <= 1:
        raise InvalidInput("min_score must be between -1 and 1")
    result = await _search(services, request, "vector")
    if not result.vector_available:
        raise AgentUnavailable("there are no vectors: configure an embedder (see the page about memory)")
    matches = [wire.match_message(hit) for hit in result.items if hit.score >= request.min_score]
    status = await get_vector_index_status(services, None)
    return m.VectorTeleportResponse(matches=matches, index_status=status)


async def get_vector_index_status(services: Services, request: Any) -> Any:
    stats, vectors = await services.memory.stats(), services.memory.vectors
    dimension = 0 if vectors is None else await vectors.dims(await services.memory.ns())
    return m.VectorIndexStatus(
        available=vectors is not None and stats.vectors > 0,
        vector_count=stats.vectors,
        dimension=dimension,
        last_indexed=stats.vectors_at or "",
        index_path=stats.path,
        size_bytes=4 * dimension * stats.vectors,
    )


async def search_node(services: Services, request: Any) -> Any:
    result = await services.memory.search_node(
        _named(request, "node_id"),
        request.query,
        fields=wire.parse_parts(request.fields),
        limit=_limit(request.limit, HITS, MOST_HITS),
        token_budget=_limit(request.token_budget, 0, MOST_TOKENS),
    )
    return m.SearchNodeResponse(
        matched=bool(result.matches),
        matches=wire.match_messages(result),
        node_id=result.node_id,
        level=wire.find_number(wire.LEVEL_NAMES, result.level),
    )


async def search_children(services: Services, request: Any) -> Any:
    level = wire.named(wire.LEVEL_NAMES, request.child_level, "level") if request.child_level else None
    result = await services.memory.search_children(
        request.query,
        parent_id=request.parent_id or None,
        level=level,
        fields=wire.parse_parts(request.fields),
        limit=_limit(request.limit, HITS, MOST_HITS),
        token_budget=_limit(request.token_budget, 0, MOST_TOKENS),
    )
    return m.SearchChildrenResponse(results=map(wire.node_result, result.items), has_more=result.has_more)


async def hybrid_search(services: Services, request: Any) -> Any:
    mode = wire.named(wire.MODES, request.mode, "search mode")
    result = await _search(
        services,
        request,
        mode,
        text_weight=_weight(request.bm25_weight),
        vector_weight=_weight(request.vector_weight),
    )
    return m.HybridSearchResponse(
        matches=map(wire.match_message, result.items),
        mode_used=wire.find_number(wire.MODES, result.mode_used),
        bm25_available=result.text_available,
        vector_available=result.vector_available,
    )


async def _search(services: Services, request: Any, mode: Any, **weights: float) -> SearchResult:
    if not request.query.strip():
        raise InvalidInput("query is required")
    since, until = wire.parse_times(request)
    return await services.memory.search_kinds(
        request.query,
        wire.parse_kinds(request.target),
        mode=mode,
        agent=_optional(request, "agent_filter"),
        since_ms=since,
        until_ms=until,
        limit=_limit(request.top_k, HITS, MOST_HITS),
        **weights,
    )


def _weight(given: float) -> float:
    """Return the weight of a ranking: the default if it is unset or negative, as in agent-memory."""
    return WEIGHT if given <= 0 else given


# --- the scheduler ----------------------------------------------------------------------------------------


async def get_scheduler_status(services: Services, request: Any) -> Any:
    """Return the state of this server's scheduler, and its jobs by name."""
    page = await services.schedules.status(limit=JOBS_PAGE)
    running, jobs = page.scheduler_running, list(page.jobs)
    while page.next_after is not None and len(jobs) < MOST_JOBS:
        page = await services.schedules.status(after=page.next_after, limit=JOBS_PAGE)
        jobs += page.jobs
    return m.GetSchedulerStatusResponse(scheduler_running=running, jobs=map(_job_message, jobs))


def _job_message(job: JobStatus) -> Any:
    about = job.last_run_metadata if isinstance(job.last_run_metadata, dict) else {}
    return m.JobStatusProto(
        job_name=job.job_name,
        cron_expr=job.cron_expr,
        last_run_ms=_ms(job.last_run),
        last_duration_ms=job.last_duration_ms,
        last_result=RESULTS.get(job.last_result or "", 0),
        last_error=job.last_error,
        next_run_ms=_ms(job.next_run),
        run_count=job.run_count,
        error_count=job.error_count,
        is_running=job.is_running,
        is_paused=job.is_paused,
        last_run_metadata={
            key: value if isinstance(value, str) else encode_json(value) for key, value in about.items()
        },
    )


async def pause_job(services: Services, request: Any) -> Any:
    return m.PauseJobResponse(**await _switched(services.schedules.pause, request.job_name))


async def resume_job(services: Services, request: Any) -> Any:
    return m.ResumeJobResponse(**await _switched(services.schedules.resume, request.job_name))


async def _switched(switch: Callable[[str], Awaitable[Any]], name: str) -> dict[str, Any]:
    """Pause or resume a job. A missing or unchangeable job gives `success: false`, not an error."""
    try:
        if not name:
            raise NotFound()
        await switch(name)
    except NotFound:
        return {"success": False, "error": f"Job not found: {name}"}
    except Conflict as error:
        return {"success": False, "error": error.message}
    return {"success": True}


METHODS = {
    "IngestEvent": Method(m.IngestEventRequest, "write", ingest_event),
    "IngestEvents": Method(m.IngestEventsRequest, "write", ingest_events),
    "GetEvents": Method(m.GetEventsRequest, "read", get_events),
    "GetTocRoot": Method(m.GetTocRootRequest, "read", get_toc_root),
    "GetNode": Method(m.GetNodeRequest, "read", get_node),
    "BrowseToc": Method(m.BrowseTocRequest, "read", browse_toc),
    "ExpandGrip": Method(m.ExpandGripRequest, "read", expand_grip),
    "SearchNode": Method(m.SearchNodeRequest, "read", search_node),
    "SearchChildren": Method(m.SearchChildrenRequest, "read", search_children),
    "TeleportSearch": Method(m.TeleportSearchRequest, "read", teleport_search),
    "VectorTeleport": Method(m.VectorTeleportRequest, "read", vector_teleport),
    "HybridSearch": Method(m.HybridSearchRequest, "read", hybrid_search),
    "GetVectorIndexStatus": Method(m.GetVectorIndexStatusRequest, "read", get_vector_index_status),
    "GetSchedulerStatus": Method(m.GetSchedulerStatusRequest, "read", get_scheduler_status),
    "PauseJob": Method(m.PauseJobRequest, "write", pause_job),
    "ResumeJob": Method(m.ResumeJobRequest, "write", resume_job),
}
"""Methods with one request and one response; others are UNIMPLEMENTED."""


def _limit(given: int, default: int, most: int) -> int:
    return default if given <= 0 else min(given, most)


def _named(request: Any, name: str) -> str:
    """Return a required id of a request."""
    value: str = getattr(request, name)
    if not value.strip():
        raise InvalidInput(f"{name} is required")
    return value


def _around(request: Any, name: str) -> int:
    """Return the number of events to show before or after a grip."""
    return min(max(getattr(request, name), 0), MAX_AROUND) if request.HasField(name) else AROUND


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * 1000)


def _optional(request: Any, name: str) -> Any:
    return getattr(request, name) or None if request.HasField(name) else None


# --- the service ------------------------------------------------------------------------------------------


class MemoryServicer:
    """Answers the memory calls on behalf of their callers."""

    def __init__(self, calls: Calls, app: App) -> None:
        self._calls = calls
        self._app = app
        self._stopping = asyncio.Event()

    def handlers(self) -> Any:
        """Build the handlers of all methods."""
        handlers = {name: self._unary(method) for name, method in METHODS.items()}
        handlers["StreamEvents"] = self._calls.stream("write", self._stream_events)
        return grpc.method_handlers_generic_handler(MEMORY_SERVICE, handlers)

    def end_streams(self) -> None:
        """Stop reading streams. Received batches are still stored and acknowledged."""
        self._stopping.set()

    def _unary(self, method: Method) -> Any:
        async def answer(caller: Caller, data: bytes) -> bytes:
            request = parse(method.request, data)
            response = await method.answer(self._app.services.acting_as(caller), request)
            encoded: bytes = response.SerializeToString()
            return encoded

        return self._calls.unary(method.scope, answer)

    async def _stream_events(self, caller: Caller, requests: Requests) -> AsyncIterator[bytes]:
        """Store batches concurrently, and acknowledge them in order."""
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
        """Return the next message of a stream. Return None at its end, after idling, or on shutdown."""
        coming = asyncio.ensure_future(anext(requests, None))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((coming, stopping), timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()
            stopping.cancel()
