"""Spans as OTLP carries them, on their way into the tables. Nothing of them is left out.

A span is stored as its own bytes, with a few scalars beside them, and becomes a record when it is read. What
spans share, the resource and the scope with their schema URLs, is stored once under the hash of its content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, TracesData
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

from perdure.kernel.checks import MAX_TEXT
from perdure.kernel.errors import InvalidInput
from perdure.rollouts.operations.spans import NewSpan
from perdure.rollouts.otlp_values import some_attributes
from perdure.rollouts.rows import part_hash
from perdure.rollouts.spans import StatusCode
from perdure.rollouts.traces.figures import ATTRIBUTES, Figures, figures_if_any, may_have_figures

__all__ = ["OTLP", "STATUS_CODES", "Received", "TracesData", "parse", "receive"]

OTLP = "otlp"
ROLLOUT_ID = "agentlightning.rollout_id"
ATTEMPT_ID = "agentlightning.attempt_id"
SEQUENCE_ID = "agentlightning.span_sequence_id"

NO_ROLLOUT = f"no {ROLLOUT_ID} and {ATTEMPT_ID} on the span or its resource"
BAD_ID = "an id that is not one of OpenTelemetry's"
TOO_MANY = "more attributes, events or links than a span may have"
UNREADABLE = "Unable to parse OTLP traces payload: it is damaged, or its values are nested too deeply"

_MARK = b"agentlightning."
_LAST = 2**63 - 1
_NO_SPAN = "0" * 16
_NAME_LENGTH = 8192
_MOST = 10_000
"""How many attributes, events or links a span may have; OpenTelemetry's own limit is 128."""
STATUS_CODES: Mapping[int, StatusCode] = {0: "UNSET", 1: "OK", 2: "ERROR"}


class Received(msgspec.Struct):
    """What a batch holds: spans ready to be stored, the parts they share, and those that go nowhere.

    `refused` counts the latter by reason. `unattributed` are spans that name no rollout.
    """

    spans: list[NewSpan]
    parts: dict[str, bytes]
    refused: dict[str, int]
    unattributed: list[NewSpan]

    def refuse(self, reason: str, count: int = 1) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + count


def parse(data: bytes) -> TracesData:
    """The message of an export request, which has the same form; InvalidInput if it has not."""
    try:
        traces: TracesData = TracesData.FromString(data)
    except DecodeError:
        raise InvalidInput(UNREADABLE) from None
    return traces


def receive(traces: TracesData) -> Received:
    """The spans of a batch. Attributes are not looked at, save those that say where a span belongs."""
    received = Received([], {}, {}, [])
    for group in traces.resource_spans:
        part = _resource_part(group)
        resource = _keep_part(received, part)
        home = _home(group.resource.attributes) if _MARK in part else _Home()
        for scoped in group.scope_spans:
            scope = _keep_part(received, _scope_part(scoped))
            for span in scoped.spans:
                _receive(received, span, resource, scope, home)
    return received


def _resource_part(group: ResourceSpans) -> bytes:
    part = ResourceSpans(schema_url=group.schema_url)
    part.resource.CopyFrom(group.resource)
    return part.SerializeToString() if part.schema_url or group.resource.ByteSize() else b""


def _scope_part(scoped: ScopeSpans) -> bytes:
    part = ScopeSpans(schema_url=scoped.schema_url)
    part.scope.CopyFrom(scoped.scope)
    return part.SerializeToString() if part.schema_url or scoped.scope.ByteSize() else b""


def _keep_part(received: Received, body: bytes) -> str | None:
    if not body:
        return None
    name = part_hash(body)
    received.parts[name] = body
    return name


class _Home(msgspec.Struct):
    """Where a span belongs, as far as it is said."""

    rollout_id: str | None = None
    attempt_id: str | None = None
    sequence_id: int | None = None


def _home(attributes: Iterable[KeyValue], outer: _Home | None = None) -> _Home:
    """What these attributes say, and the resource's where they say nothing."""
    home = _Home(outer.rollout_id, outer.attempt_id, outer.sequence_id) if outer else _Home()
    for attribute in attributes:
        if attribute.key == ROLLOUT_ID:
            home.rollout_id = _id(attribute.value) or home.rollout_id
        elif attribute.key == ATTEMPT_ID:
            home.attempt_id = _id(attribute.value) or home.attempt_id
        elif attribute.key == SEQUENCE_ID:
            home.sequence_id = _sequence_id(attribute.value)
    return home


def _id(value: AnyValue) -> str | None:
    """An id; one that no rollout can have is as good as an unknown one."""
    text = value.string_value or (str(value.int_value) if value.HasField("int_value") else "")
    return text.replace("\0", "\ufffd")[:MAX_TEXT] or None


def _sequence_id(value: AnyValue) -> int | None:
    """A whole number, or a string of digits; anything else leaves the number to the store."""
    text = value.string_value.strip()
    if text.isascii() and text.isdecimal() and len(text) < 20:
        number = int(text)
    elif value.HasField("int_value"):
        number = value.int_value
    else:
        return None
    return number if 0 <= number <= _LAST else None


def _receive(received: Received, span: Message, resource: str | None, scope: str | None, home: _Home) -> None:
    """Add one span to what was received, or the reason why not."""
    body = span.SerializeToString()
    if len(body) > _MOST and max(len(span.attributes), len(span.events), len(span.links)) > _MOST:
        received.refuse(TOO_MANY)
        return
    if _MARK in body:
        home = _home(span.attributes, home)
    span_id, trace_id, parent_id = (
        _hex(span.span_id, 8),
        _hex(span.trace_id, 16),
        _hex(span.parent_span_id, 8),
    )
    if span_id is None or trace_id is None or parent_id is None or span_id == _NO_SPAN:
        received.refuse(BAD_ID)
        return
    attributed = home.rollout_id is not None and home.attempt_id is not None
    spans = received.spans if attributed else received.unattributed
    spans.append(
        NewSpan(
            home.rollout_id or "",
            home.attempt_id or "",
            span_id,
            home.sequence_id,
            trace_id,
            None if parent_id == _NO_SPAN else parent_id,
            _column(span.name),
            min(span.start_time_unix_nano, _LAST) or None,
            min(span.end_time_unix_nano, _LAST) or None,
            STATUS_CODES.get(span.status.code, "UNSET"),
            len(body),
            resource,
            scope,
            OTLP,
            body,
            _figures(span, body),
        )
    )


def _figures(span: Message, body: bytes) -> Figures | None:
    if not may_have_figures(body):
        return None
    return figures_if_any(span.name, some_attributes(span.attributes, ATTRIBUTES))


def _hex(value: bytes, size: int) -> str | None:
    """An id in hex, a short one filled up from the left; None for one that is too long."""
    if len(value) == size:
        return value.hex()
    return value.hex().zfill(size * 2) if len(value) < size else None


def _column(name: str) -> str:
    """The name as a text column can hold it; the body keeps it whole."""
    if len(name) * 4 > _NAME_LENGTH:
        name = name.encode()[:_NAME_LENGTH].decode(errors="ignore")
    return name.replace("\0", "\ufffd") if "\0" in name else name
