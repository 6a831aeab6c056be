"""Converts spans of OpenTelemetry's SDK without loss. No other module imports its types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.spans.records import Event, Link, OtelResource, Span, SpanContext, TraceStatus, seconds_from

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event as OtelEvent
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link as OtelLink
    from opentelemetry.trace import SpanContext as OtelSpanContext
    from opentelemetry.trace import Status as OtelStatus

__all__ = ["context_from", "event_from", "link_from", "resource_from", "span_from", "status_from"]

_CONVERTED = frozenset(
    {
        "attributes",
        "context",
        "end_time",
        "events",
        "instrumentation_info",
        "instrumentation_scope",
        "kind",
        "links",
        "name",
        "parent",
        "resource",
        "start_time",
        "status",
    }
)
_MACHINERY = frozenset(
    {
        "limits",
        "lock",
        "record_exception",
        "sampler",
        "set_status_on_exception",
        "span_processor",
        "trace_config",
    }
)
_SCALARS = frozenset({str, int, float, bool, type(None)})
_TAKEN = frozenset(dir(Span)).union(field.name for field in Span._declared)


def span_from(src: ReadableSpan, rollout_id: str, attempt_id: str, sequence_id: int) -> Span:
    """Convert a span; undeclared fields become extra keys."""
    context = src.get_span_context()
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=sequence_id,
        trace_id=_hex(context.trace_id if context else 0, 32),
        span_id=_hex(context.span_id if context else 0, 16),
        parent_id=_hex(src.parent.span_id, 16) if src.parent else None,
        name=src.name,
        status=status_from(src.status),
        attributes=_attributes(src.attributes),
        events=[event_from(event) for event in src.events],
        links=[link_from(link) for link in src.links],
        start_time=_seconds(src.start_time),
        end_time=_seconds(src.end_time),
        context=context_from(context) if context else None,
        parent=context_from(src.parent) if src.parent else None,
        resource=resource_from(src.resource),
        **_undeclared(src),
    )


def context_from(src: OtelSpanContext) -> SpanContext:
    """Convert a context with its flags and trace state."""
    return SpanContext(
        trace_id=_hex(src.trace_id, 32),
        span_id=_hex(src.span_id, 16),
        is_remote=src.is_remote,
        trace_state=dict(src.trace_state) if src.trace_state else {},
        trace_flags=int(src.trace_flags),
    )


def status_from(src: OtelStatus) -> TraceStatus:
    """Convert a status."""
    return TraceStatus(status_code=src.status_code.name, description=src.description)


def event_from(src: OtelEvent) -> Event:
    """Convert an event with its exact time."""
    return Event(
        name=src.name,
        attributes=_attributes(src.attributes),
        timestamp=_seconds(src.timestamp),
        timestamp_unix_nano=src.timestamp,
        dropped_attributes=_dropped(src.attributes),
    )


def link_from(src: OtelLink) -> Link:
    """Convert a link."""
    return Link(
        context=context_from(src.context),
        attributes=_attributes(src.attributes) if src.attributes else None,
        dropped_attributes=_dropped(src.attributes),
    )


def resource_from(src: Resource) -> OtelResource:
    """Convert a resource."""
    return OtelResource(
        attributes=_attributes(src.attributes),
        schema_url=src.schema_url or "",
        dropped_attributes=_dropped(src.attributes),
    )


def _undeclared(src: ReadableSpan) -> dict[str, Any]:
    return {
        **_other_fields(src),
        "kind": src.kind.name,
        "instrumentation_scope": _scope(vars(src)),
        "start_time_unix_nano": src.start_time,
        "end_time_unix_nano": src.end_time,
        "dropped_attributes": src.dropped_attributes,
        "dropped_events": src.dropped_events,
        "dropped_links": src.dropped_links,
    }


def _scope(fields: dict[str, Any]) -> dict[str, Any] | None:
    # Read the deprecated info from the fields, because its property warns.
    scope = fields.get("_instrumentation_scope") or fields.get("_instrumentation_info")
    if scope is None:
        return None
    attributes = getattr(scope, "attributes", None)
    return {
        "name": scope.name,
        "version": scope.version,
        "schema_url": scope.schema_url,
        "attributes": _attributes(attributes),
        "dropped_attributes": _dropped(attributes),
    }


def _other_fields(src: ReadableSpan) -> dict[str, Any]:
    """Return fields of subclasses and newer SDKs that JSON can represent."""
    named = {name.lstrip("_"): value for name, value in vars(src).items()}
    unknown = named.keys() - _CONVERTED - _MACHINERY - _TAKEN
    values = {name: _value(named[name]) for name in sorted(unknown)}
    return {name: value for name, value in values.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        encode_json(value, nan="keep")
    except InvalidInput:
        return False
    return True


def _attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: _value(value) for name, value in attributes.items()} if attributes else {}


def _value(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, tuple | list):
        return [_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _value(item) for name, item in value.items()}
    return value


def _dropped(attributes: Any) -> int:
    return getattr(attributes, "dropped", 0)


def _seconds(nanoseconds: int | None) -> float | None:
    return seconds_from(nanoseconds) if nanoseconds else None


def _hex(number: int, width: int) -> str:
    return f"{number:0{width}x}"
