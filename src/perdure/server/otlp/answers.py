"""Responses to OpenTelemetry exporters, in the form of their request."""

from __future__ import annotations

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

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
from perdure.server.otlp.decode import JSON_FORM, Form
from perdure.server.otlp.ingest import IngestOutcome

__all__ = ["encode_outcome", "encode_status", "grpc_code", "http_status"]

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
