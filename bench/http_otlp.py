"""OTLP over HTTP: prepared batches, sent over open connections.

Both servers get the same spans, except for the ids of the rollouts, which each server assigns.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status, TracesData

from bench import work
from bench.timing import spread

BATCH = 512
HEADERS = {"Content-Type": "application/x-protobuf"}
AT_ONCE = 16


class Exporter:
    """Creates rollouts on a server and sends their spans, a batch for each rollout."""

    def __init__(self, url: str, session: aiohttp.ClientSession, spans: ScopeSpans | None = None) -> None:
        self._url = url
        self._session = session
        self._spans = spans or make_spans(BATCH)

    async def rate(self, size: int) -> float:
        """Return spans per second."""
        batches = await self.make_batches(max(size // BATCH, 1))
        return BATCH * await self.send_all(batches)

    async def make_batches(self, count: int) -> list[bytes]:
        made: list[bytes] = []
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            made += await asyncio.gather(*(self._make_batch(number) for number in numbers))
        return made

    async def _make_batch(self, number: int) -> bytes:
        return self.batch_of(*await self._start_rollout(number))

    async def _start_rollout(self, number: int) -> tuple[str, str]:
        started = await self._ask("/v1/agl/rollouts", {"input": work.task_input(number)})
        return started["rollout_id"], started["attempt"]["attempt_id"]

    async def _ask(self, path: str, body: dict[str, Any]) -> Any:
        async with self._session.post(self._url + path, json=body) as response:
            response.raise_for_status()
            return await response.json()

    def batch_of(self, rollout_id: str, attempt_id: str) -> bytes:
        owner = {"agentlightning.rollout_id": rollout_id, "agentlightning.attempt_id": attempt_id}
        resource = Resource(attributes=list(key_values({"service.name": "agent", **owner})))
        group = ResourceSpans(resource=resource, scope_spans=[self._spans])
        data: bytes = TracesData(resource_spans=[group]).SerializeToString()
        return data

    async def send_all(self, batches: list[bytes]) -> float:
        """Return batches per second."""
        return await spread(work.BATCH_CALLERS, len(batches), lambda number: self.send(batches[number]))

    async def send(self, batch: bytes) -> None:
        async with self._session.post(self._url + "/v1/traces", data=batch, headers=HEADERS) as response:
            response.raise_for_status()
            # A non-empty answer lists refused spans.
            refused = await response.read()
            if refused:
                raise RuntimeError(f"spans were not stored: {refused!r}")

    async def check_resending(self) -> None:
        """Check that a batch sent twice is stored once."""
        rollout_id, attempt_id = await self._start_rollout(0)
        batch = self.batch_of(rollout_id, attempt_id)
        for _ in range(2):
            await self.send(batch)
            found = await self._ask("/v1/agl/spans/search", {"rollout_id": rollout_id, "limit": 1})
            if found["total"] != BATCH:
                raise RuntimeError(f"of {BATCH} spans, {found['total']} are stored")


@asynccontextmanager
async def exporter_to(url: str, spans: ScopeSpans | None = None) -> AsyncIterator[Exporter]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AT_ONCE)) as session:
        yield Exporter(url, session, spans)


def make_spans(count: int) -> ScopeSpans:
    scope = InstrumentationScope(name="bench", version="1")
    return ScopeSpans(scope=scope, spans=[make_span(number) for number in range(1, count + 1)])


def make_span(number: int) -> Span:
    started = 1_700_000_000_000_000_000 + number * 1_000_000
    return Span(
        trace_id=(1).to_bytes(16, "big"),
        span_id=number.to_bytes(8, "big"),
        parent_span_id=b"" if number == 1 else (1).to_bytes(8, "big"),
        name="chat a-model-of-middling-size",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=started,
        end_time_unix_nano=started + 250_000_000,
        attributes=list(key_values(work.span_attributes(number))),
        status=Status(code=Status.STATUS_CODE_OK),
    )


def key_values(attributes: Mapping[str, Any]) -> Iterator[KeyValue]:
    for key, value in attributes.items():
        yield KeyValue(key=key, value=any_value(value))


def any_value(value: Any) -> AnyValue:
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[any_value(each) for each in value]))
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(int_value=value) if isinstance(value, int) else AnyValue(double_value=value)
