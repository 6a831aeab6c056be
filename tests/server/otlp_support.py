"""Spans of OpenTelemetry's SDK, batches of them as messages, and a store on each engine."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry import trace as api
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode

from perdure import LightningStore, PostgresLightningStore, Span, SqliteLightningStore
from perdure.rollouts.store import DatabaseLightningStore

ENGINES = ("sqlite", "postgres")
PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}
START = 1_700_000_000_123_456_789
REMOTE = api.SpanContext(
    trace_id=0xABC,
    span_id=0xDEF,
    is_remote=True,
    trace_flags=api.TraceFlags(api.TraceFlags.SAMPLED),
    trace_state=api.TraceState([("vendor", "value"), ("other", "2")]),
)


@asynccontextmanager
async def opened(
    engine: str, request: pytest.FixtureRequest, folder: Path
) -> AsyncIterator[DatabaseLightningStore]:
    """Open a separate store on SQLite or on PostgreSQL."""
    if engine == "sqlite":
        store: DatabaseLightningStore = SqliteLightningStore(folder / "spans.db")
    else:
        store = PostgresLightningStore(request.getfixturevalue("database_url"))
    async with store:
        yield store


class Home(NamedTuple):
    """The rollout and attempt of spans."""

    rollout_id: str
    attempt_id: str

    @property
    def attributes(self) -> dict[str, str]:
        return {"agentlightning.rollout_id": self.rollout_id, "agentlightning.attempt_id": self.attempt_id}


async def begun(store: LightningStore) -> Home:
    """Start a rollout."""
    rollout = await store.start_rollout({"task": "trace"})
    return Home(rollout.rollout_id, rollout.attempt.attempt_id)


@contextmanager
def recording(exporter: Any = None, resource: dict[str, Any] | None = None) -> Iterator[Recorder]:
    """Create a tracer whose spans also go to `exporter`, if given."""
    recorder = Recorder(exporter, resource or {})
    yield recorder
    recorder.provider.shutdown()


class Recorder:
    """A tracer and its spans."""

    def __init__(self, exporter: Any, resource: dict[str, Any]) -> None:
        self._made = InMemorySpanExporter()
        self.provider = TracerProvider(
            resource=Resource({"service.name": "agent", "ids": ["a", "b"], **resource}, "https://schema/r"),
            span_limits=SpanLimits(
                max_span_attributes=8,
                max_events=2,
                max_links=1,
                max_event_attributes=1,
                max_link_attributes=1,
            ),
            shutdown_on_exit=False,
        )
        for each in (self._made, exporter):
            if each is not None:
                self.provider.add_span_processor(SimpleSpanProcessor(each))
        self.tracer = self.provider.get_tracer("lib", "1.2", "https://schema/scope", {"scope.key": "v"})

    @property
    def made(self) -> Sequence[ReadableSpan]:
        return self._made.get_finished_spans()

    def rich_span(self) -> ReadableSpan:
        """Build a span with a value in every field, and with dropped values in each list."""
        parent = api.set_span_in_context(api.NonRecordingSpan(REMOTE))
        links = [api.Link(REMOTE, {"dropped": 1}), api.Link(REMOTE, {"l": 1, "m": 2})]
        span = self.tracer.start_span(
            "chat", context=parent, kind=api.SpanKind.CLIENT, links=links, start_time=START
        )
        for name in ("one", "two", "three"):
            span.add_event(name, {"x": name, "y": 1}, timestamp=START + 5)
        span.set_attributes({"dropped": 0, "text": "t", "flag": True, "ratio": 0.5, "list": ["a", "b"]})
        values: dict[str, Any] = {
            "bytes": b"\x00\xff",
            "map": {"in": (1, b"\x02")},
            "none": None,
            "big": 2**62,
        }
        span.set_attributes(values)
        span.set_status(Status(StatusCode.ERROR, "broken"))
        span.end(START + 1_000_000_007)
        return self.made[-1]

    def plain_span(self, name: str = "step") -> ReadableSpan:
        self.tracer.start_span(name, start_time=START).end(START + 1)
        return self.made[-1]


class Batch:
    """An export request under construction."""

    def __init__(self, home: Home | None = None, *, scope: str = "lib") -> None:
        self.message = TracesData()
        self.group = self.message.resource_spans.add()
        self.scoped = self.group.scope_spans.add()
        self.scoped.scope.name = scope
        self.trace_id = secrets.token_bytes(16)
        for key, value in (home.attributes if home else {}).items():
            self.group.resource.attributes.add(key=key).value.string_value = value

    def add(self, name: str = "step", **attributes: str | int) -> Message:
        """Add a span."""
        span: Message = self.scoped.spans.add(
            trace_id=self.trace_id,
            span_id=secrets.token_bytes(8),
            parent_span_id=b"\x01" * 8,
            name=name,
            start_time_unix_nano=START,
            end_time_unix_nano=START + 1000,
        )
        for key, value in attributes.items():
            chosen = AnyValue(string_value=value) if isinstance(value, str) else AnyValue(int_value=value)
            span.attributes.add(key="agentlightning." + key).value.CopyFrom(chosen)
        return span

    def bytes(self) -> bytes:
        data: bytes = self.message.SerializeToString()
        return data


def deep_batch(levels: int) -> bytes:
    """Encode a span with deeply nested values by hand, because no library would."""
    value = b"\x18\x01"
    for _ in range(levels):
        value = field(5, field(1, value))
    span = field(2, b"12345678") + field(9, field(1, b"deep") + field(2, value))
    return field(1, field(2, field(2, span)))


def field(number: int, value: bytes) -> bytes:
    """Encode a field of a message by hand."""
    size, length = bytearray(), len(value)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return bytes([number << 3 | 2]) + bytes(size) + value


async def spans_of(store: LightningStore, home: Home) -> list[Span]:
    return list((await store.query_spans(home.rollout_id, home.attempt_id)).items)
