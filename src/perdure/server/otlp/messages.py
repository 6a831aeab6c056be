"""Messages of OTLP: requests in protobuf or OTLP's JSON, both bounded, and responses in the same form."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status, TracesData

from perdure.kernel.errors import (
    AgentUnavailable,
    Conflict,
    Forbidden,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    NotSupported,
    PerdureError,
    RequestTimeout,
    StorageError,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    UnknownRoute,
    UnsupportedMedia,
)
from perdure.server.http.bodies import encode
from perdure.server.otlp.ingest import IngestOutcome
from perdure.spans.otlp import UNREADABLE, DecodedTraces, parse

# --- requests ---------------------------------------------------------------------------------------------


Form = Literal["application/x-protobuf", "application/json"]
PROTOBUF_FORM: Form = "application/x-protobuf"
JSON_FORM: Form = "application/json"

MAX_SPANS = 10_000
"""Maximum spans in a request."""
MAX_OBJECTS = 500_000
"""Maximum objects in a JSON request."""
MAX_ERROR = 500
"""Maximum length of the quoted parser message, which contains parts of the request."""


def parse_form(content_type: str | None) -> Form:
    """Return the form of a content type."""
    name = (content_type or "").partition(";")[0].strip().lower()
    for form in (PROTOBUF_FORM, JSON_FORM):
        if name == form:
            return form
    raise InvalidInput(
        f"Unsupported Content-Type {name[:100]!r}, expected {PROTOBUF_FORM!r} or {JSON_FORM!r}"
    )


def decode(data: bytes, form: Form) -> DecodedTraces:
    """Decode the traces of a request; an empty request has none."""
    traces = parse(data if form == PROTOBUF_FORM else _from_json(data))
    _check_size(traces.spans)
    return traces


def _check_size(traces: Any) -> None:
    """Refuse a request that is small on the wire and large in memory, before its spans are read."""
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
# It is protobuf's JSON, except that ids are in base 16 where other bytes are in base 64. Protobuf's parser
# skips unknown fields as required, but also unknown enum names and bad base 64. The code below refuses these.

_GROUPS = ("resourceSpans", "resource_spans")
_SCOPES = ("scopeSpans", "scope_spans")
_IDS = ("traceId", "trace_id", "spanId", "span_id", "parentSpanId", "parent_span_id")
_BYTES = ("bytesValue", "bytes_value")
_INTEGERS = ("intValue", "int_value")


def _from_json(data: bytes) -> bytes:
    """Convert OTLP JSON to protobuf bytes."""
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
    """Encode the ids of a span and its links in base 64, and check its enums."""
    for holder in (span, *_below([span], ("links",))):
        for name in _IDS:
            if holder.get(name):
                holder[name] = _decode_base64(holder[name])
    _check_enum(span.get("kind"), Span.SpanKind)
    status = span.get("status")
    _check_enum(status.get("code") if isinstance(status, dict) else None, Status.StatusCode)


def _below(parents: Iterable[Any], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects in lists with these names. The parser refuses other values."""
    for parent in parents:
        for name in names:
            children = parent.get(name)
            if isinstance(children, list):
                yield from (child for child in children if isinstance(child, dict))


def _decode_base64(text: Any) -> str:
    try:
        return base64.b64encode(bytes.fromhex(text)).decode()
    except (ValueError, TypeError):
        raise ValueError(f"{str(text)[:40]!r} is not an id in base 16") from None


def _check_enum(value: Any, kind: Any) -> None:
    """Check an enum value: a member's name, or a 32-bit number, which a later release may define."""
    if isinstance(value, str) and value in kind.keys():  # noqa: SIM118
        return
    if value is not None and not -(2**31) <= int(value) < 2**31:
        raise ValueError(f"{value} is out of range")


def _check_values(request: Any) -> None:
    """Check attribute values at any depth."""
    pending = [request]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            for name in _BYTES:
                if isinstance(value.get(name), str):
                    base64.b64decode(value[name], validate=True)
            for name in _INTEGERS:
                if isinstance(value.get(name), str) and not value[name].isascii():
                    raise ValueError(f"{value[name][:30]!r} is not a whole number")
            pending += value.values()
        elif isinstance(value, list):
            pending += value


# --- responses --------------------------------------------------------------------------------------------


_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_DOMAIN = "perdure"

# Exporters retry a batch after 429, 502, 503, 504 and UNAVAILABLE, and drop it after other errors.
_STATUSES: tuple[tuple[type[PerdureError], int, int], ...] = (
    (InvalidInput, 400, 3),
    (UnsupportedMedia, 400, 3),
    (RequestTimeout, 408, 4),
    (TooLarge, 413, 8),
    (Unauthorized, 401, 16),
    (Forbidden, 403, 7),
    (NotFound, 404, 5),
    (Conflict, 409, 9),
    (UnknownRoute, 404, 12),
    (MethodNotAllowed, 405, 12),
    (NotSupported, 501, 12),
    (TooManyRequests, 429, 14),
    (AgentUnavailable, 503, 14),
    (StorageError, 503, 14),
)


def _get_status(error: PerdureError) -> tuple[int, int]:
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return status, code
    return error.http_status, 13


def http_status(error: PerdureError) -> int:
    """Return the HTTP status of an error."""
    return _get_status(error)[0]


def grpc_code(error: PerdureError) -> int:
    """Return the gRPC status code of an error."""
    return _get_status(error)[1]


def encode_outcome(outcome: IngestOutcome, form: Form) -> bytes:
    """Encode the response to an export: empty, or the number of rejected spans and the reason."""
    if form == JSON_FORM:
        partial = {"rejectedSpans": str(outcome.rejected), "errorMessage": outcome.message}
        return encode({"partialSuccess": partial} if outcome.rejected else {})
    answer = ExportTraceServiceResponse()
    if outcome.rejected:
        answer.partial_success.rejected_spans = outcome.rejected
        answer.partial_success.error_message = outcome.message
    data: bytes = answer.SerializeToString()
    return data


def encode_status(error: PerdureError, request_id: str, form: Form) -> bytes:
    """Encode an error as a google.rpc.Status, with its code and the request's id in the details."""
    if form == JSON_FORM:
        info = {
            "@type": _ERROR_INFO,
            "reason": error.code,
            "domain": _DOMAIN,
            "metadata": {"request_id": request_id},
        }
        return encode({"code": grpc_code(error), "message": error.message, "details": [info]})
    pair = _field(1, b"request_id") + _field(2, request_id.encode())
    info_body = _field(1, error.code.encode()) + _field(2, _DOMAIN.encode()) + _field(3, pair)
    details = _field(1, _ERROR_INFO.encode()) + _field(2, info_body)
    # Encoded by hand: the generated classes of these two small messages would need another package.
    return b"\x08" + _varint(grpc_code(error)) + _field(2, error.message.encode()) + _field(3, details)


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
