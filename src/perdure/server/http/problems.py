"""Errors as RFC 9457 problem documents, for the native API and for paths without a protocol."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from perdure.kernel.errors import (
    BadBody,
    BadQuery,
    BadRequest,
    InvalidInput,
    MethodNotAllowed,
    PerdureError,
    StorageError,
    TooManyRequests,
    Unauthorized,
)
from perdure.server.http.bodies import encode

MEDIA_TYPE = "application/problem+json"

logger = logging.getLogger(__name__)


class NativeProtocol:
    """Refuses a request with a problem document. Bad queries, requests and bodies are `invalid_input`."""

    name = "native"

    def refuse(self, error: PerdureError, request_id: str, request: Request) -> Response:
        document = problem(error, request_id, request.url.path)
        return Response(encode(document), document["status"], build_headers(error), MEDIA_TYPE)


def problem(error: PerdureError, request_id: str, path: str) -> dict[str, Any]:
    """Build the problem document of an error, without internal details."""
    kind = InvalidInput if isinstance(error, BadQuery | BadRequest | BadBody) else type(error)
    document = {
        "type": f"urn:perdure:error:{kind.code}",
        "title": HTTPStatus(kind.http_status).phrase,
        "status": kind.http_status,
        "detail": error.message,
        "instance": path,
        "code": kind.code,
        "request_id": request_id,
    }
    if isinstance(error, BadBody):
        document["location"] = list(error.location)
    return document


def internal_error(request_id: str) -> PerdureError:
    """Build the error that replaces an unexpected exception; the log has the exception."""
    return PerdureError(f"internal error; request {request_id}, see the server's log")


def public_error(error: PerdureError, request_id: str) -> PerdureError:
    """Return the error as its caller may read it, and log the rest under the request's id."""
    if error.http_status >= 500:
        logger.warning("request %s: %s: %s", request_id, error.code, error.message)
    if not isinstance(error, StorageError):
        return error
    return type(error)(f"{error.public.rstrip('.')}; request {request_id}, see the server's log")


def build_headers(error: PerdureError) -> dict[str, str]:
    """Return the headers that a status requires."""
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": 'Bearer realm="perdure"'}
    if isinstance(error, MethodNotAllowed) and error.allowed:
        return {"Allow": ", ".join(error.allowed)}
    return {"Retry-After": "1"} if isinstance(error, TooManyRequests) else {}


NATIVE = NativeProtocol()
