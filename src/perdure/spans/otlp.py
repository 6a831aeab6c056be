"""Converts spans from OTLP to rows without loss.

A span is stored as its own bytes with a few scalars, and decoded when it is read. Parts that spans share,
the resource and the scope with their schema URLs, are stored once under the hash of their content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

from perdure.kernel.checks import MAX_TEXT
from perdure.kernel.errors import InvalidInput
from perdure.spans import otlp_schema
from perdure.spans.figures import AGENT, ATTRIBUTES, SESSIONS, SpanFigures, cut_label, step_of
from perdure.spans.forms import OTLP
from perdure.spans.otlp_figures import figures_in
from perdure.spans.records import StatusCode
from perdure.spans.rows import NewSpan, part_hash

__all__ = ["STATUS_CODES", "DecodedTraces", "Received", "figures_of_body", "parse", "receive"]

ROLLOUT_ID = "agentlightning.rollout_id"
ATTEMPT_ID = "agentlightning.attempt_id"
SEQUENCE_ID = "agentlightning.span_sequence_id"

NO_ROLLOUT = (
    f"no {ROLLOUT_ID} and {ATTEMPT_ID} on the span or its resource, "
    "and no attempt has its parent or its trace; with the setting keep_traces the server keeps such traces"
)
NO_TRACE_ID = f"no trace id, and no {ROLLOUT_ID} and {ATTEMPT_ID} on the span or its resource"
BAD_ID = "an id that is not one of OpenTelemetry's"
TOO_MANY = "more attributes, events or links than a span may have"
UNREADABLE = "Unable to parse OTLP traces payload: it is damaged, or its values are nested too deeply"

_HOME = frozenset({ROLLOUT_ID, ATTEMPT_ID, SEQUENCE_ID})
_AGENTS = frozenset(AGENT)
_DEEPEST = 64
"""Maximum number of spans above a model call to search for its agent."""
_LAST = 2**63 - 1
_NO_SPAN = "0" * 16
NO_TRACE = "0" * 32
_NAME_LENGTH = 8192
_MOST = 10_000
"""Maximum number of attributes, events or links of a span; OpenTelemetry's own limit is 128."""
_TAGS = (b"J", b"Z", b"j")
"""The first byte of each encoded attribute, event and link of a span."""
STATUS_CODES: Mapping[int, StatusCode] = {0: "UNSET", 1: "OK", 2: "ERROR"}

wanted_in = (ATTRIBUTES | _HOME | frozenset(SESSIONS)).intersection
"""Return those attribute names of a span that are needed."""


class Received(msgspec.Struct):
    """The spans of a batch, ready to store, their shared parts, and the refused spans.

    `refused` counts spans by reason. `unattributed` are spans that name no rollout.
    """

    spans: list[NewSpan]
    parts: dict[str, bytes]
    refused: dict[str, int]
    unattributed: list[NewSpan]
    agents: dict[str, str]
    """The agents that spans name, by span id."""

    def refuse(self, reason: str, count: int = 1) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + count


class DecodedTraces(NamedTuple):
    """A message decoded with two schemas: with readable spans, and with the bytes of each span."""

    spans: Any
    bodies: Any


def parse(data: bytes) -> DecodedTraces:
    """Parse an export request; InvalidInput if it is damaged."""
    try:
        return DecodedTraces(otlp_schema.Traces.FromString(data), otlp_schema.Bodies.FromString(data))
    except DecodeError:
        raise InvalidInput(UNREADABLE) from None


def receive(traces: DecodedTraces) -> Received:
    """Convert the spans of a batch. Only wanted attributes are read."""
    received = Received([], {}, {}, [], {})
    for group, bodies in zip(traces.spans.resource_spans, traces.bodies.resource_spans, strict=True):
        resource = _keep_part(received, _resource_part(group))
        home = _parse_home({item.key: item.value for item in group.resource.attributes}, _Home())
        for scoped, own in zip(group.scope_spans, bodies.scope_spans, strict=True):
            scope = _keep_part(received, _scope_part(scoped))
            for span, body in zip(scoped.spans, own.spans, strict=True):
                _receive(received, span, body, resource, scope, home)
    if received.agents:
        _inherit_agents(received)
    return received


def _resource_part(group: Any) -> bytes:
    part = otlp_schema.ResourcePart(schema_url=group.schema_url)
    part.resource.CopyFrom(group.resource)
    return part.SerializeToString() if part.schema_url or group.resource.ByteSize() else b""


def _scope_part(scoped: Any) -> bytes:
    part = otlp_schema.ScopePart(schema_url=scoped.schema_url)
    part.scope.CopyFrom(scoped.scope)
    return part.SerializeToString() if part.schema_url or scoped.scope.ByteSize() else b""


def _keep_part(received: Received, body: bytes) -> str | None:
    if not body:
        return None
    name = part_hash(body)
    received.parts[name] = body
    return name


class _Home(msgspec.Struct):
    """The rollout and attempt of a span, and its number, as far as they are given."""

    rollout_id: str | None = None
    attempt_id: str | None = None
    sequence_id: int | None = None


def _parse_home(attributes: Mapping[str, AnyValue], outer: _Home) -> _Home:
    """Read the home from these attributes; missing values come from the resource."""
    home = _Home(outer.rollout_id, outer.attempt_id, outer.sequence_id)
    if ROLLOUT_ID in attributes:
        home.rollout_id = _parse_id(attributes[ROLLOUT_ID]) or home.rollout_id
    if ATTEMPT_ID in attributes:
        home.attempt_id = _parse_id(attributes[ATTEMPT_ID]) or home.attempt_id
    if SEQUENCE_ID in attributes:
        home.sequence_id = _parse_sequence_id(attributes[SEQUENCE_ID])
    return home


def _parse_id(value: AnyValue) -> str | None:
    """Return an id. An id that no rollout can have is changed; it is as unknown as before."""
    text = value.string_value or (str(value.int_value) if value.HasField("int_value") else "")
    return text.replace("\0", "\ufffd")[:MAX_TEXT] or None


def _parse_sequence_id(value: AnyValue) -> int | None:
    """Return a whole number from a number or a string of digits; with None the store chooses the number."""
    text = value.string_value.strip()
    if text.isascii() and text.isdecimal() and len(text) < 20:
        number = int(text)
    elif value.HasField("int_value"):
        number = value.int_value
    else:
        return None
    return number if 0 <= number <= _LAST else None


def _receive(
    received: Received, span: Any, body: bytes, resource: str | None, scope: str | None, home: _Home
) -> None:
    """Add one span to the batch, or count the reason for refusing it."""
    if len(body) > _MOST and _has_too_many(body):
        received.refuse(TOO_MANY)
        return
    attributes = span.attributes
    wanted = wanted_in(attributes)
    if wanted and not _HOME.isdisjoint(wanted):
        home = _parse_home(attributes, home)
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
            figures_in(span, attributes, wanted) if wanted else None,
            "",
            _session_in(attributes, wanted) if wanted else "",
        )
    )
    if wanted and not _AGENTS.isdisjoint(wanted):
        received.agents[span_id] = next(
            (cut_label(attributes[key].string_value) for key in AGENT if key in wanted), ""
        )


def _session_in(attributes: Any, wanted: frozenset[str]) -> str:
    for name in SESSIONS:
        if name in wanted:
            return cut_label(attributes[name].string_value)
    return ""


def _inherit_agents(received: Received) -> None:
    """Set the missing agent of each model call from the nearest span above the call in the batch."""
    spans = [*received.spans, *received.unattributed]
    parents = {span.span_id: span.parent_id for span in spans}
    for span in spans:
        figures = span.figures
        if figures is None or figures.step.agent or not figures.step.model:
            continue
        above, seen = span.parent_id, 0
        while above is not None and seen < _DEEPEST:
            agent = received.agents.get(above)
            if agent:
                step = figures.step
                inherited = step_of(step.kind, step.model, agent, step.user_id)
                span.figures = msgspec.structs.replace(figures, step=inherited)
                break
            above, seen = parents.get(above), seen + 1


def figures_of_body(body: bytes) -> SpanFigures | None:
    """Compute the figures of a stored span; ValueError if it cannot be decoded."""
    try:
        span = otlp_schema.Span.FromString(body)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    wanted = wanted_in(span.attributes)
    return figures_in(span, span.attributes, wanted) if wanted else None


def _has_too_many(body: bytes) -> bool:
    """Return whether a large span has too many parts. The map does not show it, since it merges equal
    keys."""
    if all(body.count(tag) <= _MOST for tag in _TAGS):
        return False
    span = Message.FromString(body)
    return max(len(span.attributes), len(span.events), len(span.links)) > _MOST


def _hex(value: bytes, size: int) -> str | None:
    """Return an id in hex, padded from the left; None if it is too long."""
    if len(value) == size:
        return value.hex()
    return value.hex().zfill(size * 2) if len(value) < size else None


def _column(name: str) -> str:
    """Return the name in a form that a text column can hold; the body has the whole name."""
    if len(name) * 4 > _NAME_LENGTH:
        name = name.encode()[:_NAME_LENGTH].decode(errors="ignore")
    return name.replace("\0", "\ufffd") if "\0" in name else name
