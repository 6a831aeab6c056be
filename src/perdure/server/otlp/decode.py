"""What an OpenTelemetry exporter sends: protobuf, or JSON as OTLP writes it. Both are bounded."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from google.protobuf.message import DecodeError, EncodeError
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    EntityRef,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from perdure.kernel.errors import InvalidInput, TooLarge
from perdure.rollouts.otlp import UNREADABLE, TracesData, parse

__all__ = ["JSON_FORM", "MAX_SPANS", "PROTOBUF_FORM", "Form", "decode", "form_of"]

Form = Literal["application/x-protobuf", "application/json"]
PROTOBUF_FORM: Form = "application/x-protobuf"
JSON_FORM: Form = "application/json"

MAX_SPANS = 10_000
"""How many spans one request may bring."""
MAX_OBJECTS = 500_000
"""How many objects the JSON form may have."""
MAX_DEPTH = 64
"""How many lists and maps may stand inside each other; protobuf itself allows fewer still."""

T = TypeVar("T")


def form_of(content_type: str | None) -> Form:
    """The form that a content type names."""
    name = (content_type or "").partition(";")[0].strip().lower()
    for form in (PROTOBUF_FORM, JSON_FORM):
        if name == form:
            return form
    raise InvalidInput(
        f"Unsupported Content-Type {name[:100]!r}, expected {PROTOBUF_FORM!r} or {JSON_FORM!r}"
    )


def decode(data: bytes, form: Form) -> TracesData:
    """The traces of a request, none if it is empty."""
    traces = parse(data if form == PROTOBUF_FORM else _protobuf_from(data))
    _check_size(traces)
    return traces


def _check_size(traces: TracesData) -> None:
    """Refuse a request that is small on the wire and large in memory, before anybody walks through it."""
    groups = len(traces.resource_spans)
    if groups > MAX_SPANS:
        raise TooLarge(f"the request brings {groups} resources; at most {MAX_SPANS} are taken at once")
    scopes = sum(len(group.scope_spans) for group in traces.resource_spans)
    if scopes > MAX_SPANS:
        raise TooLarge(f"the request brings {scopes} scopes; at most {MAX_SPANS} are taken at once")
    spans = sum(len(scoped.spans) for group in traces.resource_spans for scoped in group.scope_spans)
    if spans > MAX_SPANS:
        raise TooLarge(f"the request brings {spans} spans; at most {MAX_SPANS} are taken at once")


# --- the JSON form ----------------------------------------------------------------------------------------
# Names are in camel case, ids in base 16, and 64-bit numbers may be strings. Unknown names are passed over.

Number = int | str | None


class _Json(msgspec.Struct, rename="camel"):
    """A message in its JSON form, where anything may be missing or null."""


class _AnyValue(_Json):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Number = None
    double_value: float | str | None = None
    array_value: _ArrayValue | None = None
    kvlist_value: _KeyValueList | None = None
    bytes_value: str | None = None


class _ArrayValue(_Json):
    values: list[_AnyValue] | None = None


class _KeyValue(_Json):
    key: str | None = None
    value: _AnyValue | None = None


class _KeyValueList(_Json):
    values: list[_KeyValue] | None = None


Attributes = list[_KeyValue] | None


class _Event(_Json):
    time_unix_nano: Number = None
    name: str | None = None
    attributes: Attributes = None
    dropped_attributes_count: Number = None


class _Link(_Json):
    trace_id: str | None = None
    span_id: str | None = None
    trace_state: str | None = None
    attributes: Attributes = None
    dropped_attributes_count: Number = None
    flags: Number = None


class _Status(_Json):
    message: str | None = None
    code: Number = None


class _Span(_Json):
    trace_id: str | None = None
    span_id: str | None = None
    trace_state: str | None = None
    parent_span_id: str | None = None
    flags: Number = None
    name: str | None = None
    kind: Number = None
    start_time_unix_nano: Number = None
    end_time_unix_nano: Number = None
    attributes: Attributes = None
    dropped_attributes_count: Number = None
    events: list[_Event] | None = None
    dropped_events_count: Number = None
    links: list[_Link] | None = None
    dropped_links_count: Number = None
    status: _Status | None = None


class _Scope(_Json):
    name: str | None = None
    version: str | None = None
    attributes: Attributes = None
    dropped_attributes_count: Number = None


class _ScopeSpans(_Json):
    scope: _Scope | None = None
    spans: list[_Span] | None = None
    schema_url: str | None = None


class _EntityRef(_Json):
    schema_url: str | None = None
    type: str | None = None
    id_keys: list[str] | None = None
    description_keys: list[str] | None = None


class _Resource(_Json):
    attributes: Attributes = None
    dropped_attributes_count: Number = None
    entity_refs: list[_EntityRef] | None = None


class _ResourceSpans(_Json):
    resource: _Resource | None = None
    scope_spans: list[_ScopeSpans] | None = None
    schema_url: str | None = None


class _Request(_Json):
    resource_spans: list[_ResourceSpans] | None = None


_decoder = msgspec.json.Decoder(_Request)


def _protobuf_from(data: bytes) -> bytes:
    """The JSON form as the bytes of the same message, so that one way in is enough for both."""
    if data.count(b"{") > MAX_OBJECTS:
        raise TooLarge(f"the request has more than {MAX_OBJECTS} objects")
    try:
        request = _decoder.decode(data) if data.strip() else _Request()
        data = TracesData(resource_spans=_all(request.resource_spans, _group)).SerializeToString()
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise InvalidInput(f"Unable to parse OTLP traces payload: {error}") from None
    except (RecursionError, DecodeError, EncodeError):
        raise InvalidInput(UNREADABLE) from None
    return data


def _all(items: Sequence[Any] | None, make: Callable[[Any], T]) -> list[T]:
    return [make(item) for item in items or ()]


def _group(group: _ResourceSpans) -> ResourceSpans:
    return ResourceSpans(
        resource=_resource(group.resource) if group.resource else None,
        scope_spans=_all(group.scope_spans, _scoped),
        schema_url=group.schema_url or "",
    )


def _resource(resource: _Resource) -> Resource:
    return Resource(
        attributes=_all(resource.attributes, _key_value),
        dropped_attributes_count=_number(resource.dropped_attributes_count),
        entity_refs=_all(resource.entity_refs, _entity),
    )


def _entity(entity: _EntityRef) -> EntityRef:
    return EntityRef(
        schema_url=entity.schema_url or "",
        type=entity.type or "",
        id_keys=entity.id_keys,
        description_keys=entity.description_keys,
    )


def _scoped(scoped: _ScopeSpans) -> ScopeSpans:
    return ScopeSpans(
        scope=_scope(scoped.scope) if scoped.scope else None,
        spans=_all(scoped.spans, _span),
        schema_url=scoped.schema_url or "",
    )


def _scope(scope: _Scope) -> InstrumentationScope:
    return InstrumentationScope(
        name=scope.name or "",
        version=scope.version or "",
        attributes=_all(scope.attributes, _key_value),
        dropped_attributes_count=_number(scope.dropped_attributes_count),
    )


def _span(span: _Span) -> Span:
    return Span(
        trace_id=_id(span.trace_id),
        span_id=_id(span.span_id),
        trace_state=span.trace_state or "",
        parent_span_id=_id(span.parent_span_id),
        flags=_number(span.flags),
        name=span.name or "",
        kind=_enum(span.kind, Span.SpanKind),
        start_time_unix_nano=_number(span.start_time_unix_nano),
        end_time_unix_nano=_number(span.end_time_unix_nano),
        attributes=_all(span.attributes, _key_value),
        dropped_attributes_count=_number(span.dropped_attributes_count),
        events=_all(span.events, _event),
        dropped_events_count=_number(span.dropped_events_count),
        links=_all(span.links, _link),
        dropped_links_count=_number(span.dropped_links_count),
        status=_status(span.status) if span.status else None,
    )


def _status(status: _Status) -> Status:
    return Status(message=status.message or "", code=_enum(status.code, Status.StatusCode))


def _event(event: _Event) -> Span.Event:
    return Span.Event(
        time_unix_nano=_number(event.time_unix_nano),
        name=event.name or "",
        attributes=_all(event.attributes, _key_value),
        dropped_attributes_count=_number(event.dropped_attributes_count),
    )


def _link(link: _Link) -> Span.Link:
    return Span.Link(
        trace_id=_id(link.trace_id),
        span_id=_id(link.span_id),
        trace_state=link.trace_state or "",
        attributes=_all(link.attributes, _key_value),
        dropped_attributes_count=_number(link.dropped_attributes_count),
        flags=_number(link.flags),
    )


def _key_value(pair: _KeyValue, depth: int = 0) -> KeyValue:
    return KeyValue(key=pair.key or "", value=_any_value(pair.value, depth) if pair.value else None)


def _any_value(value: _AnyValue, depth: int = 0) -> AnyValue:
    if depth > MAX_DEPTH:
        raise RecursionError
    if value.string_value is not None:
        return AnyValue(string_value=value.string_value)
    if value.bool_value is not None:
        return AnyValue(bool_value=value.bool_value)
    if value.int_value is not None:
        return AnyValue(int_value=_number(value.int_value))
    if value.double_value is not None:
        return AnyValue(double_value=float(value.double_value))
    if value.bytes_value is not None:
        return AnyValue(bytes_value=_base64(value.bytes_value))
    if value.array_value is not None:
        items = [_any_value(item, depth + 1) for item in value.array_value.values or ()]
        return AnyValue(array_value=ArrayValue(values=items))
    if value.kvlist_value is not None:
        pairs = [_key_value(pair, depth + 1) for pair in value.kvlist_value.values or ()]
        return AnyValue(kvlist_value=KeyValueList(values=pairs))
    return AnyValue()


def _number(value: Number) -> int:
    """A whole number; strings hold those that JSON's readers would round."""
    if isinstance(value, str):
        if not value.isascii() or len(value) > 20:
            raise ValueError(f"{value[:30]!r} is not a whole number")
        return int(value)
    return value or 0


def _enum(value: Number, kind: Any) -> Any:
    """A member by its number or by its name."""
    if isinstance(value, str) and value in kind.keys():  # noqa: SIM118
        return int(kind.Value(value))
    return _number(value)


def _id(text: str | None) -> bytes:
    if not text:
        return b""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not an id in base 16") from None


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("bytesValue is not base 64") from None
