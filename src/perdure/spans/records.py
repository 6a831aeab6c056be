"""Spans and their parts. Undeclared keys are kept in storage, queries and responses."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast, get_args

import msgspec

from perdure.kernel.record import (
    OpenRecord,
    RecordField,
    boolean,
    expected,
    list_of,
    nested,
    one_of,
    text,
    whole_number,
)

__all__ = [
    "AttributeValue",
    "Attributes",
    "Event",
    "Link",
    "OtelResource",
    "Span",
    "SpanContext",
    "SpanCoreFields",
    "StatusCode",
    "TraceState",
    "TraceStatus",
    "seconds_from",
]

AttributeValue = str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
Attributes = dict[str, AttributeValue]
TraceState = dict[str, str]
StatusCode = Literal["UNSET", "OK", "ERROR"]

VIRTUAL_SPAN = "agentlightning.virtual"
"""Name of a span that was derived, not recorded."""

_NANOSECONDS_FROM = 1e12
_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=-_NANOSECONDS_FROM, le=_NANOSECONDS_FROM)]
_Nothing = Annotated[list[Any], msgspec.Meta(max_length=0)]
_TEXT_ONLY = frozenset({str})
_PLAIN_VALUES = frozenset({str, bool, int, float, list})
_VALUES = (str, bool, int, float, list, tuple, dict, type(None))


def seconds_from(timestamp: float) -> float:
    """Return a timestamp in seconds; a value above 1e12 is in nanoseconds."""
    return timestamp / 1e9 if timestamp > _NANOSECONDS_FROM else float(timestamp)


def _time(value: Any) -> float:
    if type(value) is float and -_NANOSECONDS_FROM <= value <= _NANOSECONDS_FROM:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        expected("a number of seconds", value)
    if not -_NANOSECONDS_FROM <= value <= _NANOSECONDS_FROM * 1e9:
        raise ValueError(f"{value!r} is not a time")
    return seconds_from(value)


def _attributes(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        value = _mapping(value)
    if _PLAIN_VALUES.issuperset(map(type, value.values())) and _TEXT_ONLY.issuperset(map(type, value)):
        return dict(value)
    for key, child in value.items():
        if not isinstance(key, str):
            expected("strings as keys", key)
        if not isinstance(child, _VALUES):
            raise ValueError(f"{key!r} cannot hold a value of type {type(child).__name__}")
    return dict(value)


def _trace_state(value: Any) -> dict[str, str]:
    state = _mapping(value) if type(value) is not dict else value
    if not state:
        return {}
    if not all(isinstance(part, str) for pair in state.items() for part in pair):
        raise ValueError("expected strings as keys and values")
    return dict(state)


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else expected("an object", value)


class SpanContext(OpenRecord):
    """Identity of a span in its trace."""

    trace_id: str
    span_id: str
    is_remote: bool
    trace_state: TraceState

    _declared = (
        RecordField("trace_id", str, text),
        RecordField("span_id", str, text),
        RecordField("is_remote", bool, boolean),
        RecordField("trace_state", TraceState, _trace_state),
    )

    @classmethod
    def from_opentelemetry(cls, src: Any) -> SpanContext:
        """Convert the context from OpenTelemetry's."""
        from perdure.spans.otel import context_from

        return context_from(src)


class TraceStatus(OpenRecord):
    """The result of a span."""

    status_code: StatusCode
    description: str | None

    _declared = (
        RecordField("status_code", StatusCode, one_of(get_args(StatusCode))),
        RecordField("description", str, text, nullable=True, default=None),
    )

    @classmethod
    def from_opentelemetry(cls, src: Any) -> TraceStatus:
        """Convert the status from OpenTelemetry's."""
        from perdure.spans.otel import status_from

        return status_from(src)


class Event(OpenRecord):
    """Something that happened within a span."""

    name: str
    attributes: Attributes
    timestamp: float | None

    _declared = (
        RecordField("name", str, text),
        RecordField("attributes", None, _attributes),
        RecordField("timestamp", _Seconds, _time, nullable=True, default=None),
    )

    @classmethod
    def from_opentelemetry(cls, src: Any) -> Event:
        """Convert the event from OpenTelemetry's."""
        from perdure.spans.otel import event_from

        return event_from(src)


class Link(OpenRecord):
    """A reference to another span."""

    context: SpanContext
    attributes: Attributes | None

    _declared = (
        RecordField("context", SpanContext, nested(SpanContext)),
        RecordField("attributes", None, _attributes, nullable=True, default=None),
    )

    @classmethod
    def from_opentelemetry(cls, src: Any) -> Link:
        """Convert the link from OpenTelemetry's."""
        from perdure.spans.otel import link_from

        return link_from(src)


class OtelResource(OpenRecord):
    """The producer of a span: a process, a service, a machine."""

    attributes: Attributes
    schema_url: str

    _declared = (RecordField("attributes", None, _attributes), RecordField("schema_url", str, text))

    @classmethod
    def from_opentelemetry(cls, src: Any) -> OtelResource:
        """Convert the resource from OpenTelemetry's."""
        from perdure.spans.otel import resource_from

        return resource_from(src)


class SpanCoreFields(OpenRecord):
    """The fields that every span needs; `Span.from_core_fields` adds the others."""

    name: str
    status: TraceStatus
    attributes: Attributes
    start_time: float | None
    end_time: float | None

    _declared = (
        RecordField("name", str, text),
        RecordField("status", TraceStatus, nested(TraceStatus)),
        RecordField("attributes", None, _attributes),
        RecordField("start_time", _Seconds, _time, nullable=True),
        RecordField("end_time", _Seconds, _time, nullable=True),
    )


class _UsualContext(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    trace_id: str
    span_id: str
    is_remote: bool
    trace_state: dict[str, str]


class _UsualStatus(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    status_code: StatusCode
    description: str | None = None


class _UsualResource(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    attributes: dict[str, Any]
    schema_url: str


class UsualSpan(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A span in the most common form, decoded and checked: without events, links and other keys, in seconds.

    It is stored and returned like the `Span` with the same fields.
    """

    rollout_id: str
    attempt_id: str
    sequence_id: _Number
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    status: _UsualStatus
    attributes: dict[str, Any]
    events: _Nothing
    links: _Nothing
    start_time: _Seconds | None
    end_time: _Seconds | None
    context: _UsualContext | None
    parent: _UsualContext | None
    resource: _UsualResource


class Span(OpenRecord):
    """One step of an attempt, as OpenTelemetry records it. Times are in seconds."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    status: TraceStatus
    attributes: Attributes
    events: list[Event]
    links: list[Link]
    start_time: float | None
    end_time: float | None
    context: SpanContext | None
    parent: SpanContext | None
    resource: OtelResource

    _declared = (
        RecordField("rollout_id", str, text),
        RecordField("attempt_id", str, text),
        RecordField("sequence_id", _Number, whole_number),
        RecordField("trace_id", str, text),
        RecordField("span_id", str, text),
        RecordField("parent_id", str, text, nullable=True),
        RecordField("name", str, text),
        RecordField("status", TraceStatus, nested(TraceStatus)),
        RecordField("attributes", None, _attributes),
        RecordField("events", list[Event], list_of(Event)),
        RecordField("links", list[Link], list_of(Link)),
        RecordField("start_time", _Seconds, _time, nullable=True),
        RecordField("end_time", _Seconds, _time, nullable=True),
        RecordField("context", SpanContext, nested(SpanContext), nullable=True),
        RecordField("parent", SpanContext, nested(SpanContext), nullable=True),
        RecordField("resource", OtelResource, nested(OtelResource)),
    )
    _usual = UsualSpan

    @classmethod
    def _from_usual(cls, usual: Any) -> Span:
        span = super()._from_usual(usual)
        span.status = TraceStatus._from_usual(usual.status)
        span.resource = OtelResource._from_usual(usual.resource)
        if usual.context is not None:
            span.context = SpanContext._from_usual(usual.context)
        if usual.parent is not None:
            span.parent = SpanContext._from_usual(usual.parent)
        return span

    @classmethod
    def from_opentelemetry(cls, src: Any, rollout_id: str, attempt_id: str, sequence_id: int) -> Span:
        """Convert the span from OpenTelemetry's, with all its data."""
        from perdure.spans.otel import span_from

        return span_from(src, rollout_id, attempt_id, sequence_id)

    @classmethod
    def from_attributes(
        cls,
        *,
        attributes: Attributes,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
        name: str | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        resource: OtelResource | None = None,
        status: TraceStatus | None = None,
    ) -> Span:
        """Create a span from attributes; ids that are not given are random."""
        trace_id = trace_id or _random_id(16)
        span_id = span_id or _random_id(8)
        return cls(
            rollout_id=rollout_id or "",
            attempt_id=attempt_id or "",
            sequence_id=sequence_id or 0,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name=name or VIRTUAL_SPAN,
            status=status or TraceStatus(status_code="OK"),
            attributes=attributes,
            events=[],
            links=[],
            start_time=start_time,
            end_time=end_time,
            context=_local_context(trace_id, span_id),
            parent=_local_context(trace_id, parent_id) if parent_id else None,
            resource=resource or OtelResource(attributes={}, schema_url=""),
        )

    @classmethod
    def from_core_fields(
        cls,
        core: SpanCoreFields,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
    ) -> Span:
        """Create a span from its core fields; without a start time it starts now."""
        return cls.from_attributes(
            attributes=core.attributes,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            name=core.name,
            start_time=core.start_time or time.time(),
            end_time=core.end_time,
            status=core.status,
        )


AnySpan = Span | UsualSpan


def build_record(span: AnySpan) -> Span:
    """Convert a span of either form to the record."""
    return Span._from_usual(span) if type(span) is UsualSpan else cast(Span, span)


def _local_context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(trace_id=trace_id, span_id=span_id, is_remote=False, trace_state={})


def _random_id(size: int) -> str:
    """Return a random id of `size` bytes in hex, but not all zeros, which OpenTelemetry treats as invalid."""
    text = secrets.token_hex(size)
    return text if text.strip("0") else _random_id(size)
