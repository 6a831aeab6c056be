"""Records of spans from OTLP, decoded from their stored bytes when they are read.

They have the same fields and keys as the spans of OpenTelemetry's SDK; see `perdure.spans.otel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

from perdure.spans.otlp import STATUS_CODES
from perdure.spans.otlp_values import decode_attributes
from perdure.spans.records import Event, Link, OtelResource, Span, SpanContext, TraceStatus, seconds_from
from perdure.spans.rows import NewSpan, SpanRecordRow

__all__ = ["OtlpSpanReader", "records", "resource_in"]

_KINDS = {number: name.removeprefix("SPAN_KIND_") for name, number in Message.SpanKind.items()}
_TRACE_FLAGS, _TELLS_REMOTE, _REMOTE = 0xFF, 0x100, 0x200


class OtlpSpanReader:
    """Converts stored spans to records. Shared parts are decoded once."""

    def __init__(self, parts: Mapping[str, bytes]) -> None:
        self._parts = parts
        self._resources: dict[str | None, dict[str, Any]] = {}
        self._scopes: dict[str | None, dict[str, Any] | None] = {}

    def read(self, row: SpanRecordRow) -> Span:
        """Convert the row of a span that came by OTLP."""
        span = _parsed(Message, bytes(row.body))
        return Span(
            rollout_id=row.rollout_id,
            attempt_id=row.attempt_id,
            sequence_id=row.sequence_id,
            trace_id=row.trace_id,
            span_id=row.span_id,
            parent_id=row.parent_id,
            name=span.name,
            status=_status(span),
            attributes=decode_attributes(span.attributes),
            events=[_event(event) for event in span.events],
            links=[_link(link) for link in span.links],
            start_time=_seconds(span.start_time_unix_nano),
            end_time=_seconds(span.end_time_unix_nano),
            context=_context(row.trace_id, row.span_id, span.flags, span.trace_state, is_remote=False),
            parent=_parent(row.trace_id, row.parent_id, span.flags),
            resource=OtelResource(**self.resource(row.resource_hash)),
            **_undeclared(span, self._scope(row.scope_hash)),
        )

    def resource(self, name: str | None) -> dict[str, Any]:
        """Return the fields of a resource by its hash."""
        if name not in self._resources:
            self._resources[name] = _resource(self._parts[name] if name else b"")
        return self._resources[name]

    def _scope(self, name: str | None) -> dict[str, Any] | None:
        if name not in self._scopes:
            self._scopes[name] = _scope(self._parts[name]) if name else None
        scope = self._scopes[name]
        return {**scope, "attributes": dict(scope["attributes"])} if scope else None


def records(spans: Sequence[NewSpan], parts: Mapping[str, bytes]) -> list[Span]:
    """Convert spans to records, for a store without another form; a span without a number gets 0."""
    read = OtlpSpanReader(parts).read
    return [
        read(
            SpanRecordRow(
                span.rollout_id,
                span.attempt_id,
                span.sequence_id or 0,
                span.trace_id,
                span.span_id,
                span.parent_id,
                span.name,
                span.resource_hash,
                span.scope_hash,
                span.format,
                span.body,
            )
        )
        for span in spans
    ]


def resource_in(body: bytes) -> dict[str, Any]:
    """Return the fields of a stored resource."""
    return _resource(body)


def _undeclared(span: Message, scope: dict[str, Any] | None) -> dict[str, Any]:
    """Return fields that the record does not declare, under the names of the SDK's spans."""
    extra = {
        "kind": _KINDS.get(span.kind, span.kind),
        "instrumentation_scope": scope,
        "start_time_unix_nano": span.start_time_unix_nano or None,
        "end_time_unix_nano": span.end_time_unix_nano or None,
        "dropped_attributes": span.dropped_attributes_count,
        "dropped_events": span.dropped_events_count,
        "dropped_links": span.dropped_links_count,
    }
    if not _flags_are_plain(span.flags):
        extra["flags"] = span.flags
    return extra


def _flags_are_plain(flags: int) -> bool:
    """Return whether the contexts contain everything that is in the flags."""
    return flags & ~(_TRACE_FLAGS | _REMOTE) == _TELLS_REMOTE


def _status(span: Message) -> TraceStatus:
    code = span.status.code
    extra = {} if code in STATUS_CODES else {"code": code}
    return TraceStatus(
        status_code=STATUS_CODES.get(code, "UNSET"), description=span.status.message or None, **extra
    )


def _context(trace_id: str, span_id: str, flags: int, trace_state: str, *, is_remote: bool) -> SpanContext:
    state = _trace_state(trace_state)
    extra = {} if _joined(state) == trace_state else {"trace_state_text": trace_state}
    return SpanContext(
        trace_id=trace_id,
        span_id=span_id,
        is_remote=is_remote,
        trace_state=state,
        trace_flags=flags & _TRACE_FLAGS,
        **extra,
    )


def _parent(trace_id: str, parent_id: str | None, flags: int) -> SpanContext | None:
    """Return the context of a parent: its ids, and whether it is in another process."""
    if parent_id is None:
        return None
    remote = bool(flags & _REMOTE)
    return SpanContext(trace_id=trace_id, span_id=parent_id, is_remote=remote, trace_state={})


def _trace_state(text: str) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in text.split(",") if entry)
    return {name: value for name, _, value in pairs}


def _joined(state: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in state.items())


def _event(event: Message.Event) -> Event:
    return Event(
        name=event.name,
        attributes=decode_attributes(event.attributes),
        timestamp=_seconds(event.time_unix_nano),
        timestamp_unix_nano=event.time_unix_nano,
        dropped_attributes=event.dropped_attributes_count,
    )


def _link(link: Message.Link) -> Link:
    extra = {} if _flags_are_plain(link.flags) else {"flags": link.flags}
    return Link(
        context=_context(
            link.trace_id.hex().zfill(32),
            link.span_id.hex().zfill(16),
            link.flags,
            link.trace_state,
            is_remote=bool(link.flags & _REMOTE),
        ),
        attributes=decode_attributes(link.attributes) if link.attributes else None,
        dropped_attributes=link.dropped_attributes_count,
        **extra,
    )


def _parsed(kind: Any, body: bytes) -> Any:
    """Parse a stored message; ValueError if it cannot be read, as for any other record."""
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise ValueError(str(error)) from error


def _resource(body: bytes) -> dict[str, Any]:
    part = _parsed(ResourceSpans, body)
    fields: dict[str, Any] = {
        "attributes": decode_attributes(part.resource.attributes),
        "schema_url": part.schema_url,
        "dropped_attributes": part.resource.dropped_attributes_count,
    }
    entities = getattr(part.resource, "entity_refs", ())
    if entities:
        fields["entity_refs"] = [
            {
                "schema_url": entity.schema_url,
                "type": entity.type,
                "id_keys": list(entity.id_keys),
                "description_keys": list(entity.description_keys),
            }
            for entity in entities
        ]
    return fields


def _scope(body: bytes) -> dict[str, Any]:
    part = _parsed(ScopeSpans, body)
    return {
        "name": part.scope.name,
        "version": part.scope.version,
        "schema_url": part.schema_url,
        "attributes": decode_attributes(part.scope.attributes),
        "dropped_attributes": part.scope.dropped_attributes_count,
    }


def _seconds(nanoseconds: int) -> float | None:
    return seconds_from(nanoseconds) if nanoseconds else None
