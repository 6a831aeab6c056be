"""Conversion of real spans of OpenTelemetry's SDK without loss."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode

from perdure.kernel.codec import decode_json, encode_json
from perdure.spans.records import Event, Link, OtelResource, Span, SpanContext, TraceStatus

START, MIDDLE, END = 1_700_000_000_123_456_789, 1_700_000_000_223_456_789, 1_700_000_001_987_654_321
REMOTE = api.SpanContext(
    trace_id=0xABC,
    span_id=0xDEF,
    is_remote=True,
    trace_flags=api.TraceFlags(api.TraceFlags.SAMPLED),
    trace_state=api.TraceState([("vendor", "value"), ("other", "2")]),
)


class Recorder:
    """A tracer and its exported spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(
            resource=Resource({"service.name": "agent", "ids": ["a", "b"]}, "https://schema/resource"),
            span_limits=SpanLimits(
                max_span_attributes=4,
                max_events=2,
                max_links=1,
                max_event_attributes=1,
                max_link_attributes=1,
            ),
            shutdown_on_exit=False,
        )
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("lib", "1.2", "https://schema/scope", {"scope.key": "v"})

    def finished(self) -> ReadableSpan:
        return self.exporter.get_finished_spans()[-1]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    made.provider.shutdown()


def convert(src: ReadableSpan) -> Span:
    return Span.from_opentelemetry(src, rollout_id="ro-1", attempt_id="at-1", sequence_id=7)


def full_span(recorder: Recorder) -> Span:
    parent = api.set_span_in_context(api.NonRecordingSpan(REMOTE))
    links = [api.Link(REMOTE, {"dropped": 1}), api.Link(REMOTE, {"l": 1, "m": 2})]
    span = recorder.tracer.start_span(
        "chat", context=parent, kind=api.SpanKind.CLIENT, links=links, start_time=START
    )
    for name in ("one", "two", "three"):
        span.add_event(name, {"x": name, "y": 1}, timestamp=MIDDLE)
    span.set_attributes({"dropped": 0, "text": "t", "flag": True, "ratio": 0.5, "list": ["a", "b"]})
    span.set_status(Status(StatusCode.ERROR, "broken"))
    span.end(END)
    return convert(recorder.finished())


def test_declared_fields(recorder: Recorder) -> None:
    made = full_span(recorder)
    assert (made.rollout_id, made.attempt_id, made.sequence_id) == ("ro-1", "at-1", 7)
    assert made.trace_id == f"{0xABC:032x}"
    assert len(made.span_id) == 16
    assert made.parent_id == f"{0xDEF:016x}"
    assert made.name == "chat"
    assert made.status == TraceStatus(status_code="ERROR", description="broken")
    assert made.attributes == {"text": "t", "flag": True, "ratio": 0.5, "list": ["a", "b"]}
    assert made.start_time == pytest.approx(1_700_000_000.1234567)
    assert made.end_time == pytest.approx(1_700_000_001.9876543)


def test_what_the_record_does_not_declare(recorder: Recorder) -> None:
    assert full_span(recorder).model_extra == {
        "kind": "CLIENT",
        "instrumentation_scope": {
            "name": "lib",
            "version": "1.2",
            "schema_url": "https://schema/scope",
            "attributes": {"scope.key": "v"},
            "dropped_attributes": 0,
        },
        "start_time_unix_nano": START,
        "end_time_unix_nano": END,
        "dropped_attributes": 1,
        "dropped_events": 1,
        "dropped_links": 1,
    }


def test_contexts_keep_flags_and_trace_state(recorder: Recorder) -> None:
    made = full_span(recorder)
    assert made.parent == SpanContext(
        trace_id=f"{0xABC:032x}",
        span_id=f"{0xDEF:016x}",
        is_remote=True,
        trace_state={"vendor": "value", "other": "2"},
        trace_flags=1,
    )
    assert made.context is not None
    assert made.context.span_id == made.span_id
    assert made.context.is_remote is False
    assert made.context.trace_state == {"vendor": "value", "other": "2"}
    assert made.context.model_extra == {"trace_flags": 1}


def test_events_links_and_resource(recorder: Recorder) -> None:
    made = full_span(recorder)
    assert [event.name for event in made.events] == ["two", "three"]
    assert made.events[0].timestamp == pytest.approx(1_700_000_000.2234567)
    assert made.events[0].model_extra == {"timestamp_unix_nano": MIDDLE, "dropped_attributes": 1}
    assert len(made.links) == 1
    assert made.links[0].context == made.parent
    assert made.links[0].attributes == {"m": 2}
    assert made.links[0].model_extra == {"dropped_attributes": 1}
    assert made.resource == OtelResource(
        attributes={"service.name": "agent", "ids": ["a", "b"]},
        schema_url="https://schema/resource",
        dropped_attributes=0,
    )


def test_nothing_is_lost_on_the_way_through_storage(recorder: Recorder) -> None:
    made = full_span(recorder)
    assert Span.model_validate(decode_json(encode_json(made))) == made
    assert Span.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize("kind", list(api.SpanKind))
def test_every_kind(recorder: Recorder, kind: api.SpanKind) -> None:
    recorder.tracer.start_span("s", kind=kind).end()
    assert convert(recorder.finished()).model_extra["kind"] == kind.name


def test_a_bare_and_unfinished_span(recorder: Recorder) -> None:
    live: Any = recorder.tracer.start_span("live")
    made = convert(live)
    assert (made.end_time, made.parent, made.parent_id) == (None, None, None)
    assert made.model_extra["end_time_unix_nano"] is None
    assert made.status == TraceStatus(status_code="UNSET")
    assert made.model_extra.keys() == {
        "kind",
        "instrumentation_scope",
        "start_time_unix_nano",
        "end_time_unix_nano",
        "dropped_attributes",
        "dropped_events",
        "dropped_links",
    }
    live.end()


def test_a_span_without_a_context() -> None:
    made = convert(ReadableSpan("none", resource=Resource({})))
    assert (made.trace_id, made.span_id, made.context) == ("0" * 32, "0" * 16, None)
    assert (made.start_time, made.end_time) == (None, None)
    assert made.model_extra["instrumentation_scope"] is None
    assert made.attributes == {}


def test_attribute_values_of_every_type() -> None:
    values: Any = {
        "bytes": b"\x00\xff",
        "many": (b"\x01", "x", None),
        "map": {"inner": (1, b"\x02")},
        "none": None,
        "big": 2**63 - 1,
    }
    made = convert(ReadableSpan("s", attributes=values, resource=Resource({})))
    assert made.attributes == {
        "bytes": "00ff",
        "many": ["01", "x", None],
        "map": {"inner": [1, "02"]},
        "none": None,
        "big": 2**63 - 1,
    }
    encode_json(made)


def test_fields_of_a_subclass_are_kept_if_json_can_hold_them() -> None:
    src: Any = ReadableSpan("s", resource=Resource({}))
    src._cost = 0.25
    src.tags = ("a", b"\x01")
    src._handle = object()
    src._trace_id = "not ours"
    src.model_dump = "hidden"
    extra = convert(src).model_extra
    assert (extra["cost"], extra["tags"]) == (0.25, ["a", "01"])
    assert {"handle", "trace_id", "model_dump"}.isdisjoint(extra)


def test_the_older_form_of_the_scope_is_kept() -> None:
    src: Any = ReadableSpan("s", resource=Resource({}))
    src._instrumentation_info = InstrumentationScope("old", "0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scope = convert(src).model_extra["instrumentation_scope"]
    assert (scope["name"], scope["version"]) == ("old", "0.1")


def test_each_part_can_be_converted_alone(recorder: Recorder) -> None:
    made = full_span(recorder)
    src = recorder.finished()
    assert src.parent is not None
    assert SpanContext.from_opentelemetry(src.parent) == made.parent
    assert TraceStatus.from_opentelemetry(src.status) == made.status
    assert Event.from_opentelemetry(src.events[0]) == made.events[0]
    assert Link.from_opentelemetry(src.links[0]) == made.links[0]
    assert OtelResource.from_opentelemetry(src.resource) == made.resource
