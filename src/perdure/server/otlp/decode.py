"""What an OpenTelemetry exporter sends: protobuf, or JSON as OTLP writes it. Both are bounded."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status, TracesData

from perdure.kernel.errors import InvalidInput, TooLarge
from perdure.spans.otlp import UNREADABLE, DecodedTraces, parse

__all__ = ["JSON_FORM", "MAX_SPANS", "PROTOBUF_FORM", "Form", "decode", "parse_form"]

Form = Literal["application/x-protobuf", "application/json"]
PROTOBUF_FORM: Form = "application/x-protobuf"
JSON_FORM: Form = "application/json"

MAX_SPANS = 10_000
"""How many spans one request may bring."""
MAX_OBJECTS = 500_000
"""How many objects the JSON form may have."""
MAX_ERROR = 500
"""How much of the parser's message is shown: it quotes what was sent."""


def parse_form(content_type: str | None) -> Form:
    """The form that a content type names."""
    name = (content_type or "").partition(";")[0].strip().lower()
    for form in (PROTOBUF_FORM, JSON_FORM):
        if name == form:
            return form
    raise InvalidInput(
        f"Unsupported Content-Type {name[:100]!r}, expected {PROTOBUF_FORM!r} or {JSON_FORM!r}"
    )


def decode(data: bytes, form: Form) -> DecodedTraces:
    """The traces of a request, none if it is empty."""
    traces = parse(data if form == PROTOBUF_FORM else _from_json(data))
    _check_size(traces.spans)
    return traces


def _check_size(traces: Any) -> None:
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
# It is protobuf's own, except that ids are in base 16 where other bytes are in base 64. Protobuf's parser
# skips unknown fields, as it must, but also unknown names of enums and bad base 64: these are refused here.

_GROUPS = ("resourceSpans", "resource_spans")
_SCOPES = ("scopeSpans", "scope_spans")
_IDS = ("traceId", "trace_id", "spanId", "span_id", "parentSpanId", "parent_span_id")
_BYTES = ("bytesValue", "bytes_value")
_INTEGERS = ("intValue", "int_value")


def _from_json(data: bytes) -> bytes:
    """The same traces as protobuf."""
    if data.count(b"{") > MAX_OBJECTS:
        raise TooLarge(f"the request has more than {MAX_OBJECTS} objects")
    traces = TracesData()
    try:
        request = msgspec.json.decode(data) if data.strip() else {}
        for span in _below(_below(_below([request], _GROUPS), _SCOPES), ("spans",)):
            _prepare_span(span)
        _check_values(request)
        json_format.ParseDict(request, traces, ignore_unknown_fields=True)
    except (msgspec.DecodeError, json_format.ParseError, ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"Unable to parse OTLP traces payload: {str(error)[:MAX_ERROR]}") from None
    except RecursionError:
        raise InvalidInput(UNREADABLE) from None
    encoded: bytes = traces.SerializeToString()
    return encoded


def _prepare_span(span: dict[str, Any]) -> None:
    """Write the ids of a span and its links in base 64, and check its enums."""
    for each in (span, *_below([span], ("links",))):
        for name in _IDS:
            if each.get(name):
                each[name] = _decode_base64(each[name])
    _check_enum(span.get("kind"), Span.SpanKind)
    status = span.get("status")
    _check_enum(status.get("code") if isinstance(status, dict) else None, Status.StatusCode)


def _below(parents: Iterable[Any], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The objects in lists with these names; anything else is left for the parser to refuse."""
    for parent in parents:
        for name in names:
            found = parent.get(name)
            if isinstance(found, list):
                yield from (each for each in found if isinstance(each, dict))


def _decode_base64(text: Any) -> str:
    try:
        return base64.b64encode(bytes.fromhex(text)).decode()
    except (ValueError, TypeError):
        raise ValueError(f"{str(text)[:40]!r} is not an id in base 16") from None


def _check_enum(value: Any, kind: Any) -> None:
    """A member by its name, or a number of 32 bits, which may be one of a later release."""
    if isinstance(value, str) and value in kind.keys():  # noqa: SIM118
        return
    if value is not None and not -(2**31) <= int(value) < 2**31:
        raise ValueError(f"{value} is out of range")


def _check_values(request: Any) -> None:
    """Check the values of attributes, at any depth."""
    pending = [request]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            for name in _BYTES:
                if isinstance(each.get(name), str):
                    base64.b64decode(each[name], validate=True)
            for name in _INTEGERS:
                if isinstance(each.get(name), str) and not each[name].isascii():
                    raise ValueError(f"{each[name][:30]!r} is not a whole number")
            pending += each.values()
        elif isinstance(each, list):
            pending += each
