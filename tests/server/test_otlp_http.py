"""OTLP over HTTP: the real exporter, both forms, and all refusals."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import (
    InMemoryLogRecordExporter,
    LogRecordExportResult,
    SimpleLogRecordProcessor,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.trace.export import SpanExportResult
from tests.access.support import access_of
from tests.server.otlp_support import (
    ENGINES,
    JSON,
    PROTOBUF,
    Batch,
    Home,
    begun,
    deep_batch,
    opened,
    recording,
    spans_of,
)
from tests.server.support import Answer, Visitor, serving

from perdure import InMemoryLightningStore, LightningStore, Span
from perdure.kernel.config import SecretKey
from perdure.kernel.errors import StorageUnavailable
from perdure.server.otlp.messages import MAX_SPANS
from perdure.server.otlp.routes import OTHER_SIGNALS, ROUTES

SECRET = SecretKey("a-key-of-some-length")


@pytest_asyncio.fixture(params=ENGINES)
async def visitor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Visitor]:
    """Start a server on each engine, and return a client."""
    async with opened(request.param, request, tmp_path) as store, serving(store, ROUTES) as visitor:
        yield visitor


@pytest_asyncio.fixture
async def door() -> AsyncIterator[Visitor]:
    """Start a server in memory, for tests that do not depend on the engine."""
    async with InMemoryLightningStore() as store, serving(store, ROUTES) as visitor:
        yield visitor


async def send(visitor: Visitor, data: bytes, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await visitor.post("/v1/traces", data=io.BytesIO(data), headers={**PROTOBUF, **named})


def partial(answer: Answer) -> tuple[int, str]:
    assert answer.status == 200
    said = ExportTraceServiceResponse.FromString(answer.body).partial_success
    return said.rejected_spans, said.error_message


def refusal(answer: Answer) -> tuple[int, int, str]:
    """Return the status, gRPC's code and the message; the details name the request."""
    status = Status.FromString(answer.body)
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.metadata["request_id"]) == ("perdure", answer.headers["X-Request-ID"])
    assert answer.headers["Content-Type"] == "application/x-protobuf"
    return answer.status, status.code, status.message


# --- the real exporter ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
async def test_everything_of_a_span_arrives(visitor: Visitor, compression: Compression) -> None:
    store = visitor.app.store
    home = await begun(store)
    exporter = OTLPSpanExporter(endpoint=visitor.url + "/v1/traces", compression=compression)
    with recording(exporter, home.attributes) as recorder:
        made = await asyncio.to_thread(recorder.rich_span)
    (found,) = await spans_of(store, home)
    wanted = Span.from_opentelemetry(made, *home, sequence_id=1)
    assert found.model_extra == wanted.model_extra
    for name in ("name", "trace_id", "span_id", "parent_id", "attributes", "events", "status", "resource"):
        assert getattr(found, name) == getattr(wanted, name)
    assert (found.start_time, found.end_time) == (wanted.start_time, wanted.end_time)
    assert found.context is not None
    assert wanted.context is not None
    assert found.context.trace_state == wanted.context.trace_state
    attempt = await store.get_latest_attempt(home.rollout_id)
    assert attempt is not None
    assert (attempt.status, attempt.last_heartbeat_time is not None) == ("running", True)


async def test_an_exporter_brings_its_key_along() -> None:
    async with InMemoryLightningStore() as store, serving(store, ROUTES, api_key=SECRET) as visitor:
        home = await begun(store)
        with recording(resource=home.attributes) as recorder:
            spans = [recorder.plain_span()]
        for headers, wanted in (
            ({}, SpanExportResult.FAILURE),
            ({"authorization": f"Bearer {SECRET}"}, SpanExportResult.SUCCESS),
        ):
            exporter = OTLPSpanExporter(endpoint=visitor.url + "/v1/traces", headers=headers)
            assert await asyncio.to_thread(exporter.export, spans) is wanted
            exporter.shutdown()  # type: ignore[no-untyped-call]
        assert len(await spans_of(store, home)) == 1


async def test_a_batch_of_512_sent_twice_is_stored_once(visitor: Visitor) -> None:
    home = await begun(visitor.app.store)
    batch = Batch(home)
    for _ in range(512):
        batch.add()
    for _ in range(2):
        answer = await send(visitor, batch.bytes())
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["Content-Type"] == "application/x-protobuf"
    found = await spans_of(visitor.app.store, home)
    assert [span.sequence_id for span in found] == list(range(1, 513))
    assert await visitor.app.store.get_next_span_sequence_id(*home) == 513


async def test_many_exporters_at_once_share_the_numbers(visitor: Visitor) -> None:
    home = await begun(visitor.app.store)
    batches = [Batch(home) for _ in range(12)]
    for batch in batches:
        for _ in range(20):
            batch.add()
    await asyncio.gather(*(send(visitor, batch.bytes()) for batch in batches for _ in range(2)))
    found = await spans_of(visitor.app.store, home)
    assert [span.sequence_id for span in found] == list(range(1, 241))


# --- partial success --------------------------------------------------------------------------------------


async def test_what_can_be_stored_is_and_the_rest_is_counted(visitor: Visitor) -> None:
    home = await begun(visitor.app.store)
    batch = Batch(home)
    for name, where in (
        ("good", {}),
        ("lost", {"rollout_id": "ro-nobody"}),
        ("lost", {"rollout_id": "x\0y"}),
    ):
        batch.add(name, **where)
    batch.add("bad").span_id = b"much too long"
    rejected, message = partial(await send(visitor, batch.bytes()))
    assert rejected == 3
    assert "Rollout ro-nobody not found" in message
    assert [span.name for span in await spans_of(visitor.app.store, home)] == ["good"]


async def test_spans_that_name_no_rollout_are_dropped_and_counted(visitor: Visitor) -> None:
    batch = Batch()
    batch.add()
    batch.add(rollout_id="ro-1")
    rejected, message = partial(await send(visitor, batch.bytes()))
    assert rejected == 2
    assert "agentlightning.rollout_id" in message
    assert (await visitor.app.store.statistics())["total_rollouts"] == 0
    counted = visitor.app.metrics.registry.get_sample_value(
        "perdure_spans_rejected_total", {"reason": "no_rollout"}
    )
    assert counted == 2


async def test_a_message_about_thousands_stays_short(door: Visitor) -> None:
    batch = Batch()
    for number in range(1000):
        batch.add(rollout_id=f"ro-{number}", attempt_id="at-1")
    rejected, message = partial(await send(door, batch.bytes()))
    assert rejected == 1000
    assert len(message) < 500


async def test_a_token_reaches_its_own_namespace_alone() -> None:
    async with InMemoryLightningStore() as store, serving(store, ROUTES) as visitor:
        theirs = store.in_namespace("theirs")
        home = await begun(theirs)
        _, secret = await access_of(visitor.app).create_token("w", scopes=("worker",), actor="test")
        batch = Batch(home)
        batch.add()
        headers = {"Authorization": f"Bearer {secret}"}
        assert partial(await send(visitor, batch.bytes(), **headers))[0] == 1
        elsewhere = await send(visitor, batch.bytes(), **headers, X_Perdure_Namespace="theirs")
        assert refusal(elsewhere)[:2] == (403, 7)
        assert await spans_of(theirs, home) == []
        _, reader = await access_of(visitor.app).create_token("r", scopes=("read",), actor="test")
        refused = await send(visitor, batch.bytes(), Authorization=f"Bearer {reader}")
        assert refusal(refused)[:2] == (403, 7)
        assert refusal(await send(visitor, batch.bytes()))[:2] == (401, 16)


# --- the JSON form ----------------------------------------------------------------------------------------


def as_json(home: Home) -> dict[str, Any]:
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in home.attributes.items()]
    values = [
        {"key": "text", "value": {"stringValue": ""}},
        {"key": "flag", "value": {"boolValue": False}},
        {"key": "int", "value": {"intValue": "-9007199254740993"}},
        {"key": "number", "value": {"intValue": 7}},
        {"key": "ratio", "value": {"doubleValue": 0.5}},
        {"key": "nan", "value": {"doubleValue": "Infinity"}},
        {"key": "bytes", "value": {"bytesValue": "AP8="}},
        {"key": "list", "value": {"arrayValue": {"values": [{"intValue": "1"}, {}]}}},
        {"key": "map", "value": {"kvlistValue": {"values": [{"key": "in", "value": {"boolValue": True}}]}}},
        {"key": "none", "value": None},
    ]
    span = {
        "traceId": "5B8EFFF798038103D269B633813FC60C",
        "spanId": "eee19b7ec3c1b174",
        "parentSpanId": "eee19b7ec3c1b173",
        "traceState": "a=1",
        "flags": 257,
        "name": "chat",
        "kind": "SPAN_KIND_SERVER",
        "startTimeUnixNano": "1544712660000000001",
        "endTimeUnixNano": 1544712661000000000,
        "attributes": values,
        "droppedAttributesCount": 1,
        "events": [{"name": "e", "timeUnixNano": "1544712660500000000", "attributes": values[:1]}],
        "links": [
            {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b175", "flags": 256}
        ],
        "status": {"code": 2, "message": "broken"},
        "unknownName": {"is": "passed over"},
    }
    scoped = {"scope": {"name": "lib", "version": "1"}, "spans": [span], "schemaUrl": "https://scope"}
    group = {"resource": {"attributes": attributes}, "scopeSpans": [scoped], "schemaUrl": "https://r"}
    return {"resourceSpans": [group]}


async def test_the_json_form(visitor: Visitor) -> None:
    home = await begun(visitor.app.store)
    answer = await visitor.post("/v1/traces", json=as_json(home))
    assert (answer.status, answer.body) == (200, {})
    assert answer.headers["Content-Type"] == "application/json"
    (span,) = await spans_of(visitor.app.store, home)
    assert span.attributes == {
        "text": "",
        "flag": False,
        "int": -9007199254740993,
        "number": 7,
        "ratio": 0.5,
        "nan": float("inf"),
        "bytes": "00ff",
        "list": [1, None],
        "map": {"in": True},
        "none": None,
    }
    assert (span.trace_id, span.span_id) == ("5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174")
    assert (span.parent_id, span.name, span.model_extra["kind"]) == ("eee19b7ec3c1b173", "chat", "SERVER")
    assert span.model_extra["start_time_unix_nano"] == 1544712660000000001
    assert span.model_extra["end_time_unix_nano"] == 1544712661000000000
    assert span.model_extra["instrumentation_scope"]["schema_url"] == "https://scope"
    assert span.resource.schema_url == "https://r"
    assert (span.status.status_code, span.status.description) == ("ERROR", "broken")
    assert span.links[0].context.span_id == "eee19b7ec3c1b175"
    assert span.events[0].attributes == {"text": ""}
    again = await visitor.post("/v1/traces", data=gzip.compress(json.dumps(as_json(home)).encode()), headers={
        **JSON, "Content-Encoding": "gzip"
    })  # fmt: skip
    assert (again.status, again.body) == (200, {})
    assert len(await spans_of(visitor.app.store, home)) == 1


async def test_partial_success_and_refusals_in_json(door: Visitor) -> None:
    answer = await door.post("/v1/traces", json=as_json(Home("ro-nobody", "at-nobody")))
    assert (answer.status, answer.body["partialSuccess"]["rejectedSpans"]) == (200, "1")
    assert "ro-nobody" in answer.body["partialSuccess"]["errorMessage"]
    refused = await door.post("/v1/traces", data=b"{", headers=JSON)
    assert (refused.status, refused.body["code"]) == (400, 3)
    assert refused.body["details"][0]["metadata"]["request_id"] == refused.headers["X-Request-ID"]
    assert "Unable to parse OTLP traces payload" in refused.body["message"]


def _span(**fields: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "01", **fields}]}]}]}


def _value(**value: Any) -> dict[str, Any]:
    return _span(attributes=[{"key": "k", "value": value}])


@pytest.mark.parametrize(
    "body",
    [
        [],
        7,
        {"resourceSpans": {}},
        {"resourceSpans": [7]},
        _span(traceId="not hex"),
        _span(spanId=5),
        _span(kind="SPAN_KIND_NONSENSE"),
        _span(kind=2**40),
        _span(startTimeUnixNano="yesterday"),
        _span(startTimeUnixNano=-1),
        _span(startTimeUnixNano="1" * 30),
        _span(startTimeUnixNano=1.5),
        _span(droppedAttributesCount=2**40),
        _span(name=["a"]),
        _value(intValue="9" * 19),
        _value(intValue="٣"),
        _value(doubleValue="lots"),
        _value(bytesValue="%%%"),
        _value(arrayValue=[1]),
    ],
)
async def test_json_of_another_shape_is_refused(door: Visitor, body: Any) -> None:
    answer = await door.post("/v1/traces", json=body)
    assert (answer.status, answer.body["code"]) == (400, 3)


@pytest.mark.parametrize("levels", [40, 70, 600, 50_000])
async def test_json_nested_too_deeply_is_refused(door: Visitor, levels: int) -> None:
    pair = '{"kvlistValue":{"values":[{"key":"k","value":' * levels + "{}" + "}]}}" * levels
    text = json.dumps(_value(stringValue="@")).replace('{"stringValue": "@"}', pair)
    answer = await send(door, text.encode(), **JSON)
    assert (answer.status, answer.body["code"]) == (400, 3)


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\n\x00"])
async def test_an_empty_request_is_fine(door: Visitor, data: bytes) -> None:
    answer = await send(door, data)
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("form", ["text/plain", "application/octet-stream", "", "application/x-protobuf2"])
async def test_another_content_type_is_refused(door: Visitor, form: str) -> None:
    answer = await send(door, b"", Content_Type=form)
    status, code, message = refusal(answer)
    assert (status, code) == (400, 3)
    assert "Unsupported Content-Type" in message


async def test_parameters_of_the_content_type_do_not_matter(door: Visitor) -> None:
    assert (await send(door, b"", Content_Type="application/x-protobuf; charset=utf-8")).status == 200
    assert (await send(door, b"", Content_Type="Application/JSON;v=1")).status == 200


async def test_damaged_bodies_are_refused(door: Visitor) -> None:
    batch = Batch(Home("ro-1", "at-1"))
    batch.add("name" * 50)
    whole = batch.bytes()
    for data in (whole[:-3], b"\xff" + whole, whole.replace(b"name", b"\xff\xfe\xfd\xfc", 1)):
        status, code, message = refusal(await send(door, data))
        assert (status, code) == (400, 3)
        assert message.startswith("Unable to parse OTLP traces payload")
    for data in (whole, gzip.compress(whole)[:-20], gzip.compress(whole)[5:]):
        assert refusal(await send(door, data, Content_Encoding="gzip"))[:2] == (400, 3)
    assert refusal(await send(door, whole, Content_Encoding="br"))[:2] == (400, 3)


@pytest.mark.parametrize("levels", [60, 5_000])
async def test_values_nested_too_deeply_are_refused(door: Visitor, levels: int) -> None:
    assert refusal(await send(door, deep_batch(levels)))[:2] == (400, 3)


async def test_values_nested_deeply_are_kept(visitor: Visitor) -> None:
    home = await begun(visitor.app.store)
    batch = Batch(home)
    batch.message.MergeFromString(deep_batch(40))
    batch.message.resource_spans[1].resource.CopyFrom(batch.group.resource)
    assert partial(await send(visitor, batch.bytes()))[0] == 0
    (span,) = await spans_of(visitor.app.store, home)
    value: Any = span.attributes["deep"]
    for _ in range(40):
        (value,) = value
    assert value == 1


async def test_a_gzip_bomb_is_refused_quickly(door: Visitor) -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)
    started = time.perf_counter()
    assert refusal(await send(door, bomb, Content_Encoding="gzip"))[:2] == (413, 8)
    assert time.perf_counter() - started < 5
    assert (await send(door, b"")).status == 200


async def test_too_large_is_refused(door: Visitor) -> None:
    assert refusal(await send(door, bytes(5 << 20)))[:2] == (413, 8)
    batch = Batch(Home("ro-1", "at-1"))
    for _ in range(MAX_SPANS + 1):
        batch.scoped.spans.add(span_id=b"x")
    assert refusal(await send(door, batch.bytes()))[:2] == (413, 8)


@pytest.mark.parametrize("data", [b"\x0a\x00" * 1_000_000, b"\x0a\xc0\x84\x3d" + b"\x12\x00" * 500_000])
async def test_empty_messages_without_end_are_refused(door: Visitor, data: bytes) -> None:
    assert refusal(await send(door, data))[:2] == (413, 8)
    many = b'{"resourceSpans":[' + b"{}," * 600_000 + b"{}]}"
    assert (await send(door, many, **JSON)).status == 413


async def test_a_span_with_attributes_without_end_is_rejected(door: Visitor) -> None:
    batch = Batch(Home("ro-1", "at-1"))
    span = batch.add()
    for _ in range(10_001):
        span.attributes.add()
    rejected, message = partial(await send(door, batch.bytes()))
    assert (rejected, "more attributes" in message) == (1, True)


@pytest.mark.parametrize("path", OTHER_SIGNALS)
async def test_other_signals_are_not_taken(door: Visitor, path: str) -> None:
    answer = await door.post(path, data=b"", headers=PROTOBUF)
    assert refusal(answer)[:2] == (404, 12)


async def test_other_signals_are_discarded_where_the_settings_say_so() -> None:
    async with (
        InMemoryLightningStore() as store,
        serving(store, ROUTES, discard_other_signals=True) as visitor,
    ):
        for path in OTHER_SIGNALS:
            answer = await visitor.post(path, data=b"", headers=PROTOBUF)
            assert (answer.status, answer.body) == (200, b"")
            answer = await visitor.post(path, data=b"{}", headers=JSON)
            assert (answer.status, answer.body) == (200, {})
            assert refusal(await visitor.post(path, data=b"", headers={"Content-Type": "x/y"}))[0] == 400


async def test_stock_exporters_of_logs_and_metrics_succeed_where_their_signals_are_discarded() -> None:
    """As in `perdure dev`: a program that exports all three signals gets no errors."""
    async with (
        InMemoryLightningStore() as store,
        serving(store, ROUTES, discard_other_signals=True) as visitor,
    ):

        def export() -> tuple[LogRecordExportResult, MetricExportResult]:
            logs = OTLPLogExporter(f"{visitor.url}/v1/logs", compression=Compression.Gzip)
            memory = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
            provider = LoggerProvider()
            provider.add_log_record_processor(SimpleLogRecordProcessor(memory))
            provider.get_logger("x").emit(LogRecord(body="hello"))
            sent = logs.export(memory.get_finished_logs())
            logs.shutdown()  # type: ignore[no-untyped-call]
            reader = InMemoryMetricReader()
            MeterProvider([reader]).get_meter("x").create_counter("c").add(1)
            metrics = OTLPMetricExporter(f"{visitor.url}/v1/metrics")
            found = reader.get_metrics_data()
            assert found is not None
            measured = metrics.export(found)
            metrics.shutdown()
            return sent, measured

        sent, measured = await asyncio.to_thread(export)
        assert (sent, measured) == (LogRecordExportResult.SUCCESS, MetricExportResult.SUCCESS)


async def test_other_methods_are_not_taken(door: Visitor) -> None:
    answer = await door.get("/v1/traces", headers=PROTOBUF)
    assert refusal(answer)[:2] == (405, 12)


class Broken(LightningStore):
    """A store that cannot be reached."""

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Any) -> Any:
        raise StorageUnavailable()


async def test_an_exporter_may_repeat_what_the_storage_could_not_do() -> None:
    batch = Batch(Home("ro-1", "at-1"))
    batch.add()
    async with serving(Broken(), ROUTES) as visitor:
        assert refusal(await send(visitor, batch.bytes()))[:2] == (503, 14)


# --- third-party stores -----------------------------------------------------------------------------------


class Plain(LightningStore):
    """A third-party store with only the contract."""

    def __init__(self, inner: LightningStore) -> None:
        self.inner = inner

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Any) -> Any:
        return await self.inner.get_many_span_sequence_ids(rollout_attempt_ids)

    async def add_many_spans(self, spans: Any) -> Any:
        return await self.inner.add_many_spans(spans)


async def test_any_store_takes_otlp_through_the_contract() -> None:
    async with InMemoryLightningStore() as store, serving(Plain(store), ROUTES) as visitor:
        home = await begun(store)
        batch = Batch(home)
        batch.add("one")
        batch.add("lost", rollout_id="ro-nobody")
        batch.add("two", span_sequence_id=9)
        assert partial(await send(visitor, batch.bytes()))[0] == 1
        assert partial(await send(visitor, batch.bytes()))[0] == 1
        found = await spans_of(store, home)
        assert [(span.name, span.sequence_id) for span in found] == [("one", 1), ("two", 9)]
        assert found[0].model_extra["instrumentation_scope"]["name"] == "lib"


# --- traces of their own ----------------------------------------------------------------------------------


@pytest_asyncio.fixture(params=ENGINES)
async def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Visitor]:
    """Start a server that keeps traces without a rollout, and return a client."""
    async with (
        opened(request.param, request, tmp_path) as store,
        serving(store, ROUTES, keep_traces=True) as visitor,
    ):
        yield visitor


async def test_a_trace_without_a_rollout_gets_one_of_its_own(keeper: Visitor) -> None:
    store = keeper.app.store
    batch = Batch()
    batch.group.resource.attributes.add(key="service.name").value.string_value = "shop"
    batch.add("child")
    assert partial(await send(keeper, batch.bytes()))[0] == 0
    rollout_id = "ro-" + batch.trace_id.hex()
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    assert (rollout.status, rollout.input["service"]) == ("running", "shop")
    assert await store.dequeue_rollout() is None
    batch.add("root").parent_span_id = b""
    assert partial(await send(keeper, batch.bytes()))[0] == 0
    (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout_id], timeout=0)
    assert ended.status == "succeeded"
    batch.add("late")
    assert partial(await send(keeper, batch.bytes()))[0] == 0
    found = await store.query_spans(rollout_id)
    assert [(span.name, span.sequence_id) for span in found.items] == [("child", 1), ("root", 2), ("late", 3)]
    assert (await store.statistics())["total_rollouts"] == 0


async def test_a_trace_whose_root_failed_has_failed(keeper: Visitor) -> None:
    batch = Batch()
    root = batch.add("root")
    root.parent_span_id, root.status.code = b"", 2  # type: ignore[assignment]
    await send(keeper, batch.bytes())
    rollout = await keeper.app.store.get_rollout_by_id("ro-" + batch.trace_id.hex())
    assert rollout is not None
    assert rollout.status == "failed"


async def test_kept_and_attributed_spans_in_one_batch(keeper: Visitor) -> None:
    store = keeper.app.store
    home = await begun(store)
    batch = Batch()
    batch.add("kept")
    batch.add("given", rollout_id=home.rollout_id, attempt_id=home.attempt_id)
    batch.add("lost", rollout_id="ro-nobody", attempt_id="at-1")
    batch.add("without a trace").trace_id = b""
    rejected, message = partial(await send(keeper, batch.bytes()))
    assert rejected == 2
    assert "ro-nobody" in message
    assert [span.name for span in await spans_of(store, home)] == ["given"]
    assert len(await store.query_spans("ro-" + batch.trace_id.hex())) == 1


async def test_many_batches_of_new_traces_at_once(keeper: Visitor) -> None:
    batches = [Batch() for _ in range(8)]
    for batch in batches:
        batch.trace_id = batches[0].trace_id
        batch.add()
    answers = await asyncio.gather(*(send(keeper, batch.bytes()) for batch in batches))
    assert [partial(answer)[0] for answer in answers] == [0] * 8
    found = await keeper.app.store.query_spans("ro-" + batches[0].trace_id.hex())
    assert [span.sequence_id for span in found.items] == list(range(1, 9))
