"""Spans: stored once, numbered, searched; from the SDK and from the OTLP exporter."""

import asyncio
from typing import Any

import aiohttp
from agentlightning.types import Span
from agentlightning.utils.otlp import LightningStoreOTLPExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from tests.conformance.framework import Run, check, make_span, refused, started


@check("add_span stores a span as it is, and counts as a heartbeat")
async def add_span(store: Any, run: Run) -> None:
    rollout = await started(store)
    sent = make_span(rollout, 1)
    assert await store.add_span(sent) == sent
    assert list(await store.query_spans(rollout.rollout_id)) == [sent]
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert (attempt.status, attempt.last_heartbeat_time is not None) == ("running", True)
    assert (await store.get_rollout_by_id(rollout.rollout_id)).status == "running"


@check("a span is stored once")
async def duplicates(store: Any, run: Run) -> None:
    rollout = await started(store)
    assert await store.add_span(make_span(rollout, 1)) is not None
    assert await store.add_span(make_span(rollout, 1)) is None
    assert (await store.query_spans(rollout.rollout_id)).total == 1


@check("unknown keys of spans survive")
async def unknown_keys(store: Any, run: Run) -> None:
    rollout = await started(store)
    sent = make_span(rollout, 1, kind="SERVER", scope={"name": "s", "deep": [1, {"x": None}]})
    assert await store.add_span(sent) == sent
    (found,) = await store.query_spans(rollout.rollout_id)
    assert found == sent
    assert found.model_extra == {"kind": "SERVER", "scope": {"name": "s", "deep": [1, {"x": None}]}}


@check("add_many_spans stores what is new, of any rollouts")
async def add_many(store: Any, run: Run) -> None:
    one, other = await started(store), await started(store)
    spans = [make_span(one, 1), make_span(other, 1), make_span(one, 2), make_span(one, 1)]
    stored = await store.add_many_spans(spans)
    assert list(stored) == spans[:3]
    assert (await store.query_spans(one.rollout_id)).total == 2
    assert (await store.query_spans(other.rollout_id)).total == 1


@check("a span of an unknown rollout or attempt fails at once")
async def unknown_ids(store: Any, run: Run) -> None:
    rollout = await started(store)
    for fields in ({"rollout_id": "ro-unknown"}, {"attempt_id": "at-unknown"}):
        async with refused(400):
            await store.add_span(make_span(rollout, 1, **fields))
    assert (await store.query_spans(rollout.rollout_id)).total == 0


@check("sequence ids count up per rollout, past those that were given")
async def sequence_ids(store: Any, run: Run) -> None:
    one, other = await started(store), await started(store)
    pairs = [(each.rollout_id, "any") for each in (one, other, one, one)]
    assert list(await store.get_many_span_sequence_ids(pairs)) == [1, 1, 2, 3]
    await store.add_span(make_span(one, 100))
    assert await store.get_next_span_sequence_id(one.rollout_id, one.attempt.attempt_id) == 101


@check("spans of the OpenTelemetry SDK are numbered as they come")
async def otel_spans(store: Any, run: Run) -> None:
    rollout = await started(store)
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    spans = list(_sdk_spans(30))
    stored = await asyncio.gather(*(store.add_otel_span(*ids, span) for span in spans))
    assert {each.sequence_id for each in stored} == set(range(1, 31))
    explicit = await store.add_otel_span(*ids, next(iter(_sdk_spans(1))), sequence_id=50)
    assert explicit.sequence_id == 50
    found = await store.query_spans(rollout.rollout_id)
    assert sorted(each.name for each in found) == sorted(["span-0", *(span.name for span in spans)])
    assert found[0].attributes == {"number": found[0].attributes["number"]}


def _sdk_spans(count: int) -> Any:
    tracer = TracerProvider(resource=Resource.create({"service.name": "sdk"})).get_tracer("conformance")
    for number in range(count):
        span = tracer.start_span(f"span-{number}", attributes={"number": number})
        span.end()
        yield span


@check("query_spans takes every filter")
async def filters(store: Any, run: Run) -> None:
    rollout = await started(store)
    await store.add_many_spans([make_span(rollout, number, f"step-{number}") for number in range(1, 7)])

    async def found(**options: Any) -> list[int]:
        return [each.sequence_id for each in await store.query_spans(rollout.rollout_id, **options)]

    assert await found() == [1, 2, 3, 4, 5, 6]
    assert await found(trace_id=f"{2:032x}") == [1, 4]
    assert await found(trace_id_contains="0003") == [2, 5]
    assert await found(span_id=f"{5:016x}") == [5]
    assert await found(span_id_contains="0006") == [6]
    assert await found(parent_id=f"{1:016x}") == [2]
    assert await found(parent_id_contains="0005") == [6]
    assert await found(name="step-3") == [3]
    assert await found(name_contains="-4") == [4]
    assert await found(name="step-3", span_id=f"{5:016x}") == []
    assert await found(name="step-3", span_id=f"{5:016x}", filter_logic="or") == [3, 5]
    assert await found(attempt_id="at-unknown", name="step-3", filter_logic="or") == []


@check("query_spans sorts, pages, and knows the latest attempt")
async def sorts(store: Any, run: Run) -> None:
    rollout = await started(store)
    await store.add_many_spans([make_span(rollout, number) for number in (2, 3, 1)])
    second = await store.start_attempt(rollout.rollout_id)
    await store.add_span(make_span(second, 4))

    async def found(attempt_id: str | None = None, **options: Any) -> list[int]:
        page = await store.query_spans(rollout.rollout_id, attempt_id, **options)
        return [each.sequence_id for each in page]

    assert await found(sort_order="desc") == [4, 3, 2, 1]
    assert await found(sort_by="start_time") == [1, 2, 3, 4]
    assert await found(sort_by="end_time") == [4, 3, 2, 1]
    assert await found(sort_by="parent_id", limit=2) == [1, 2]
    assert await found(limit=2, offset=1) == [2, 3]
    assert await found("latest") == [4]
    assert await found(rollout.attempt.attempt_id) == [1, 2, 3]
    assert list(await store.query_spans("ro-unknown")) == []


@check("1,200 spans come back with one question")
async def many_spans(store: Any, run: Run) -> None:
    rollout = await started(store)
    numbers = list(range(1, 1201))
    for start in range(0, len(numbers), 40):
        part = numbers[start : start + 40]
        await asyncio.gather(*(store.add_span(make_span(rollout, number)) for number in part))
    found = await store.query_spans(rollout.rollout_id)
    assert ([each.sequence_id for each in found], found.total) == (numbers, 1200)


@check("LightningStoreOTLPExporter stores spans through /v1/traces")
async def otlp_exporter(store: Any, run: Run) -> None:
    rollout = await started(store)
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    # Newer SDKs read the endpoint once, when the exporter is made, and no longer when it is enabled.
    exporter = LightningStoreOTLPExporter(endpoint=store.otlp_traces_endpoint())
    exporter.enable_store_otlp(store.otlp_traces_endpoint(), *ids)
    provider = TracerProvider(resource=Resource.create({"team": "conformance"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    await asyncio.to_thread(_trace, provider)
    spans = {each.name: each for each in await store.query_spans(rollout.rollout_id)}
    assert sorted(spans) == ["inner", "outer"]
    inner, outer = spans["inner"], spans["outer"]
    assert (inner.parent_id, inner.trace_id) == (outer.span_id, outer.trace_id)
    assert (inner.attributes, inner.events[0].name) == ({"n": 1, "l": ["a", "b"]}, "happened")
    assert outer.resource.attributes["team"] == "conformance"
    assert {inner.sequence_id, outer.sequence_id} == {1, 2}
    assert (await store.get_rollout_by_id(rollout.rollout_id)).status == "running"
    again = await asyncio.to_thread(exporter.export, list(_sdk_spans(2)))
    assert again is SpanExportResult.SUCCESS
    assert (await store.query_spans(rollout.rollout_id)).total == 4


def _trace(provider: TracerProvider) -> None:
    tracer = provider.get_tracer("conformance")
    with (
        tracer.start_as_current_span("outer"),
        tracer.start_as_current_span("inner", attributes={"n": 1, "l": ["a", "b"]}) as inner,
    ):
        inner.add_event("happened")
    provider.force_flush()


@check("a span with half its fields is refused with the place of each fault")
async def broken_span(store: Any, run: Run) -> None:
    rollout = await started(store)
    body = make_span(rollout, 1).model_dump(mode="json")
    del body["status"]
    async with (
        aiohttp.ClientSession() as session,
        session.post(run.url() + "/v1/agl/spans", json=body) as response,
    ):
        assert response.status == 422
        fault = (await response.json())["detail"][0]
    assert (fault["type"], fault["loc"]) == ("missing", ["body", "status"])
    assert Span.model_fields.keys() - body.keys() == {"status"}
