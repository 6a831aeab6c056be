"""Memory over gRPC: the methods of the service, on a connection that reconnects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2

from perdure.client.grpc.connection import (
    CONNECT_SECONDS,
    DEADLINE_SECONDS,
    HEALTH_CHECK,
    PATIENCE_SECONDS,
    GrpcConnection,
    Patience,
    ServerUnavailable,
    Transition,
)
from perdure.client.tls import ClientTls
from perdure.kernel.errors import JobNotFound, NotFound, PerdureError
from perdure.kernel.lifecycle import ConnectionState
from perdure.memory import message_records as wire
from perdure.memory import messages as m
from perdure.memory.calendar import Level
from perdure.memory.records import (
    ChildMatches,
    DocumentKind,
    ExpandedGrip,
    Ingested,
    MemoryEvent,
    MemoryPage,
    NewMemoryEvent,
    NodeField,
    NodeMatches,
    SearchMode,
    SearchResult,
    TocNode,
)

WINDOW = 8
"""Number of batches of a stream that are sent before the first one is acknowledged."""

STREAM_EVENTS = f"/{m.SERVICE}/StreamEvents"

Batch = Sequence[NewMemoryEvent]


class GrpcMemory:
    """The memory of a server, over gRPC.

    It connects with the first request, reconnects with back-off, and retries a request whose response was
    lost, because every method is idempotent. Errors have a `hint`. `state` is the state of the connection.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        token: str | None = None,
        namespace: str | None = None,
        tls: ClientTls | None = None,
        connect_timeout: float = CONNECT_SECONDS,
        deadline: float = DEADLINE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        on_transition: Transition | None = None,
    ) -> None:
        self.connection = GrpcConnection(
            address,
            token=token,
            namespace=namespace,
            tls=tls,
            connect_timeout=connect_timeout,
            deadline=deadline,
            patience=patience,
            on_transition=on_transition,
        )

    @property
    def state(self) -> ConnectionState:
        """The state of the connection."""
        return self.connection.state

    async def connect(self) -> None:
        """Connect now, with one try. Raise the reason if it fails."""
        await self.connection.connect()

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def health(self, service: str = "") -> str:
        """Return the health of the server or of one service: SERVING, NOT_SERVING or UNKNOWN."""
        request, answer = health_pb2.HealthCheckRequest(service=service), health_pb2.HealthCheckResponse
        response = await self.connection.call(HEALTH_CHECK, request, answer)
        name: str = answer.ServingStatus.Name(response.status)
        return name

    async def _call(self, method: str, request: Any, answer: Any) -> Any:
        return await self.connection.call(f"/{m.SERVICE}/{method}", request, answer)

    # --- events

    async def ingest(self, event: NewMemoryEvent) -> Ingested:
        """Store an event, once for each `event_id`."""
        request = m.IngestEventRequest(event=wire.event_message(event))
        return wire.message_to_ingested(await self._call("IngestEvent", request, m.IngestEventResponse))

    async def ingest_many(self, events: Batch) -> list[Ingested]:
        """Store all events or none. Return results in their order."""
        answer = await self._call("IngestEvents", _batch(events), m.IngestEventsResponse)
        return [wire.message_to_ingested(result) for result in answer.results]

    async def stream(self, batches: AsyncIterable[Batch]) -> AsyncIterator[list[Ingested]]:
        """Store batches from an iterator. Yield the results of each batch in order, once it is durable.

        After a lost connection, unacknowledged batches are sent again.
        """
        sending = Sending(batches)
        patience = Patience(self.connection)
        try:
            while True:
                try:
                    await self.connection.connect()
                    async with self.connection.request() as channel:
                        async for answer in sending.over(channel, self.connection.metadata):
                            patience.renew()
                            yield [wire.message_to_ingested(result) for result in answer.results]
                    return
                except PerdureError as error:
                    await patience.after(error)
        finally:
            await sending.close()

    async def get_events(self, *, from_ms: int = 0, to_ms: int, limit: int = 100) -> MemoryPage[MemoryEvent]:
        """List the events of a time range, both ends included, in order of their time."""
        request = m.GetEventsRequest(from_timestamp_ms=from_ms, to_timestamp_ms=to_ms, limit=limit)
        answer = await self._call("GetEvents", request, m.GetEventsResponse)
        events: list[MemoryEvent] = [wire.message_to_event(event) for event in answer.events]
        return MemoryPage(items=events, has_more=answer.has_more)

    # --- the table of contents

    async def toc_root(self) -> list[TocNode]:
        """List the years, latest first."""
        answer = await self._call("GetTocRoot", m.GetTocRootRequest(), m.GetTocRootResponse)
        return [wire.message_to_node(node) for node in answer.nodes]

    async def get_node(self, node_id: str) -> TocNode:
        """Get a node: its last complete version, with the ids of its children."""
        answer = await self._call("GetNode", m.GetNodeRequest(node_id=node_id), m.GetNodeResponse)
        if not answer.HasField("node"):
            raise NotFound(f"Node {node_id} not found")
        return wire.message_to_node(answer.node)

    async def browse(self, node_id: str, *, limit: int = 20, after: str | None = None) -> MemoryPage[TocNode]:
        """List the children of a node in order of their time."""
        request = m.BrowseTocRequest(parent_id=node_id, limit=limit, continuation_token=after)
        answer = await self._call("BrowseToc", request, m.BrowseTocResponse)
        return MemoryPage(
            items=[wire.message_to_node(node) for node in answer.children],
            has_more=answer.has_more,
            after=answer.continuation_token if answer.has_more else None,
        )

    async def expand_grip(
        self, grip_id: str, *, events_before: int = 3, events_after: int = 3
    ) -> ExpandedGrip:
        """Get a grip with its events, and those of its session around them."""
        request = m.ExpandGripRequest(grip_id=grip_id, events_before=events_before, events_after=events_after)
        answer = await self._call("ExpandGrip", request, m.ExpandGripResponse)
        if not answer.HasField("grip"):
            raise NotFound(f"Grip {grip_id} not found")
        return wire.message_to_expanded(answer)

    # --- the scheduler

    async def pause_job(self, job_name: str) -> None:
        """Pause a job of the scheduler."""
        answer = await self._call("PauseJob", m.PauseJobRequest(job_name=job_name), m.PauseJobResponse)
        if not answer.success:
            raise JobNotFound(answer.error)

    async def resume_job(self, job_name: str) -> None:
        """Resume a job of the scheduler."""
        answer = await self._call("ResumeJob", m.ResumeJobRequest(job_name=job_name), m.ResumeJobResponse)
        if not answer.success:
            raise JobNotFound(answer.error)

    async def scheduler_status(self) -> Any:
        """Return the message `GetSchedulerStatusResponse`: whether the scheduler runs, and its jobs."""
        request = m.GetSchedulerStatusRequest()
        return await self._call("GetSchedulerStatus", request, m.GetSchedulerStatusResponse)

    # --- searching

    async def search_node(
        self,
        node_id: str,
        query: str,
        *,
        fields: Sequence[NodeField] | None = None,
        limit: int = 10,
        token_budget: int = 0,
    ) -> NodeMatches:
        """Find the parts of one node that contain words of a query."""
        request = m.SearchNodeRequest(
            node_id=node_id,
            query=query,
            fields=wire.part_numbers(fields),
            limit=limit,
            token_budget=token_budget,
        )
        return wire.message_to_matches(await self._call("SearchNode", request, m.SearchNodeResponse))

    async def search_children(
        self,
        query: str,
        *,
        parent_id: str | None = None,
        level: Level | None = None,
        fields: Sequence[NodeField] | None = None,
        limit: int = 10,
        token_budget: int = 0,
    ) -> ChildMatches:
        """Find the children of a node, or the nodes of a level, that contain words of a query."""
        request = m.SearchChildrenRequest(
            query=query,
            parent_id=parent_id or "",
            child_level=0 if level is None else wire.find_number(wire.LEVEL_NAMES, level),
            fields=wire.part_numbers(fields),
            limit=limit,
            token_budget=token_budget,
        )
        answer = await self._call("SearchChildren", request, m.SearchChildrenResponse)
        return wire.message_to_children(answer)

    async def search(
        self,
        query: str,
        *,
        mode: SearchMode = "hybrid",
        kind: DocumentKind | None = None,
        agent: str | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        limit: int = 10,
        text_weight: float = 0.5,
        vector_weight: float = 0.5,
    ) -> SearchResult:
        """Find events, nodes of the table of contents and grips, best first, each with its events."""
        request = m.HybridSearchRequest(
            query=query,
            top_k=limit,
            mode=wire.find_number(wire.MODES, mode),
            bm25_weight=text_weight,
            vector_weight=vector_weight,
            time_filter=wire.time_range(since_ms, until_ms),
            target=wire.ALL_KINDS if kind is None else wire.find_number(wire.KINDS, kind),
            agent_filter=agent,
        )
        answer = await self._call("HybridSearch", request, m.HybridSearchResponse)
        return SearchResult(
            items=[wire.message_to_hit(match) for match in answer.matches],
            mode_used=wire.named(wire.MODES, answer.mode_used, "search mode"),
            text_available=answer.bm25_available,
            vector_available=answer.vector_available,
        )


class Sending:
    """Sends batches over a stream, and over the next one after a failure, until each is acknowledged."""

    def __init__(self, batches: AsyncIterable[Batch]) -> None:
        self._unacknowledged: deque[Any] = deque()
        self._coming: asyncio.Queue[Any] = asyncio.Queue(1)
        self._room = asyncio.Semaphore(WINDOW)
        self._reading = asyncio.create_task(self._read(batches))
        self._at_end = False
        self._failure: Exception | None = None

    async def _read(self, batches: AsyncIterable[Batch]) -> None:
        """Read batches from their source, also while there is no connection."""
        try:
            async for events in batches:
                await self._coming.put(_batch(events))
        except Exception as error:  # noqa: BLE001 - raised after the batches before it are acknowledged
            self._failure = error
        await self._coming.put(None)

    async def over(self, channel: Any, metadata: list[tuple[str, str]]) -> AsyncIterator[Any]:
        """Send unacknowledged batches over a stream of this channel, then the following ones."""
        call = channel.stream_stream(
            STREAM_EVENTS,
            request_serializer=m.IngestEventsRequest.SerializeToString,
            response_deserializer=m.IngestEventsResponse.FromString,
        )(metadata=metadata)
        writing = asyncio.create_task(self._write(call))
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                self._unacknowledged.popleft()
                self._room.release()
                yield answer
            if self._failure is not None:
                raise self._failure
            if not self._at_end or self._unacknowledged:
                raise ServerUnavailable("the server ended the stream")
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            call.cancel()

    async def _write(self, call: Any) -> None:
        """Write to a stream until the source ends. The reader of the responses sees why a write failed."""
        for message in list(self._unacknowledged):
            await call.write(message)
        while not self._at_end:
            await self._room.acquire()
            try:
                message = await self._coming.get()
            except asyncio.CancelledError:
                self._room.release()
                raise
            if message is None:
                self._at_end = True
            else:
                self._unacknowledged.append(message)
                await call.write(message)
        await call.done_writing()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait((self._reading,))


def _batch(events: Batch) -> Any:
    return m.IngestEventsRequest(events=[wire.event_message(event) for event in events])
