"""Request bodies and queries, limited and decoded; response bodies and errors, encoded.

Errors are RFC 9457 problem documents for the native API and for paths without a protocol.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from perdure.kernel.checks import build_detail, parse_place
from perdure.kernel.codec import encode_wire
from perdure.kernel.errors import (
    BadBody,
    BadQuery,
    BadRequest,
    InvalidInput,
    MethodNotAllowed,
    PerdureError,
    RequestTimeout,
    StorageError,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    UnsupportedMedia,
)
from perdure.kernel.record import open_record, usual_decoder

MAX_RATIO = 100
"""Maximum compression ratio of a body, beyond the first 64 KiB."""
RATIO_FLOOR = 64 << 10
_MISSING = re.compile(r"missing required field `(.+)`")

encode = encode_wire


async def read(request: Request, limit: int, decompressed_limit: int, timeout: float) -> bytes:
    """Return the decompressed body. Refuse it once it is too large, or after `timeout` seconds."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise TooLarge(f"the body has {length} bytes; at most {limit} are taken")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip", "deflate", ""):
        raise UnsupportedMedia(f"the content encoding {coding!r} is not taken; gzip is")
    try:
        async with asyncio.timeout(timeout):
            data = await _gather(request.stream(), limit)
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {timeout:g} s (setting body_timeout)") from None
    except ClientDisconnect:
        raise InvalidInput("the body ended before its time") from None
    return data if coding in ("identity", "") else inflate(data, decompressed_limit)


async def _gather(stream: AsyncIterator[bytes], limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in stream:
        size += len(part)
        if size > limit:
            raise TooLarge(f"the body has more than {limit} bytes")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def inflate(data: bytes, limit: int) -> bytes:
    """Decompress gzip or zlib data, up to `limit` bytes and the maximum ratio."""
    limit = min(limit, RATIO_FLOOR + MAX_RATIO * len(data))
    unpacker = zlib.decompressobj(wbits=47)
    try:
        unpacked = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise InvalidInput(f"the body is not valid gzip: {error}") from None
    if len(unpacked) > limit or unpacker.unconsumed_tail:
        raise TooLarge("the decompressed body is too large")
    if not unpacker.eof:
        raise InvalidInput("the gzip body ends too early")
    return unpacked


def decode_body(data: bytes, kind: Any, *, optional: bool) -> Any:
    """Decode a body as its type."""
    if optional and data.strip() in (b"", b"null"):
        return None
    if not data:
        raise BadBody("the body is missing")
    usual = usual_decoder(kind)
    if usual is not None:
        # The field-by-field decoder below handles other forms, and names the field of an error.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return usual(data)
    try:
        return _decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        raise _bad(error, kind, "body", _whole(data)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBody(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadBody("the body is nested too deeply") from None


def _whole(data: bytes) -> Any:
    """Decode a body that does not fit its type, to quote the wrong part. Return None if it is not JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=open_record)


def decode_query(parameters: QueryParams, kind: type[msgspec.Struct]) -> Any:
    """Decode a query string as its type; unknown parameters are ignored."""
    for name, value in parameters.multi_items():
        if "\0" in value:
            raise InvalidInput(f"{name[:64]!r} in the query must not contain NUL characters")
    lists = _list_fields(kind)
    values: dict[str, Any] = {
        name: parameters.getlist(name) if name in lists else parameters[name] for name in parameters
    }
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _bad(error, kind, "query", values) from None


@cache
def _list_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(name for name, hint in get_type_hints(kind).items() if _takes_list(hint))


def _takes_list(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple, Sequence) or any(_takes_list(part) for part in get_args(hint))


def _bad(error: msgspec.ValidationError, kind: Any, part: str, whole: Any) -> BadBody:
    text, steps = parse_place(error)
    missing = _MISSING.search(text)
    location = (part, *steps, *((missing[1],) if missing else ()))
    return BadBody(build_detail(text, steps, kind), location, _at(whole, steps))


def _at(whole: Any, steps: Sequence[str | int]) -> Any:
    """Return the value at a path, or None if the path does not exist."""
    for step in steps:
        try:
            whole = whole[step]
        except (LookupError, TypeError):
            return None
    return whole


# --- problem documents ------------------------------------------------------------------------------------


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
