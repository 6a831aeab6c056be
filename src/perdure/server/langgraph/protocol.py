"""Shared by the resources of the LangGraph protocol: callers, errors, ids, times, pages and checkpoints.

Errors have the form that `langgraph_sdk` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from perdure.kernel.checks import MAX_FILTER_CHOICES, check_text
from perdure.kernel.errors import BadBody, BadQuery, InvalidInput, PerdureError
from perdure.kernel.pages import PaginatedResult
from perdure.langgraph.custom_auth import User
from perdure.langgraph.views import NamespaceGraphs
from perdure.runtime.app import StoreApp
from perdure.server.http.bodies import build_headers, encode
from perdure.server.http.mounted import USER
from perdure.server.http.routes import Call
from perdure.service.callers import Caller
from perdure.threads.records import Failure

UNPROCESSABLE = 422


class LangGraphProtocol:
    """Error responses and authentication of the LangGraph routes."""

    name = "langgraph"

    def refuse(self, error: PerdureError, request_id: str, request: Request) -> Response:
        """Build the error as the SDK reads it: its message in `detail`, plus its code."""
        body = {"detail": _detail(error), "code": error.code}
        # Here an unknown filter or sort key is a field with a wrong value.
        status = UNPROCESSABLE if isinstance(error, BadQuery) else error.http_status
        return Response(encode(body), status, build_headers(error), "application/json")

    async def admit(self, request: Request, app: StoreApp) -> Caller | None:
        """Return the caller that custom auth authenticates; None without custom auth."""
        if app.auth is None:
            return None
        user = await app.auth.authenticate(request)
        request.scope[USER] = user
        actor = check_text(f"user:{user.identity}", "the identity of the caller")
        return Caller(actor, frozenset({"read", "write"}), app.namespace, (app.namespace,))


def _detail(error: PerdureError) -> str:
    if not isinstance(error, BadBody) or len(error.location) < 2:
        return error.message
    return ".".join(map(str, error.location)) + ": " + error.message


def get_user(call: Call) -> User | None:
    """Return the user that custom auth has authenticated; None without custom auth."""
    return cast("User | None", call.request.scope.get(USER))


PROTOCOL = LangGraphProtocol()


# --- values -----------------------------------------------------------------------------------------------


TOTAL = "X-Pagination-Total"
NEXT = "X-Pagination-Next"
JSON = "application/json"
NO_CONTENT = 204
MAX_PAGE = 1000
PAGE = 10
"""Default length of a list."""

Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Offset = Annotated[int, Meta(ge=0, le=2**53)]
T = TypeVar("T")
Select = Annotated[list[T], Meta(max_length=MAX_FILTER_CHOICES)]
"""Fields to return."""
Metadata = dict[str, Any]
SortOrder = Literal["asc", "desc"]


class RequestBody(msgspec.Struct, kw_only=True):
    """A request body; unknown fields are ignored, because clients of other releases may send them."""


class CheckpointBody(RequestBody, kw_only=True):
    """A checkpoint of a thread."""

    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_map: dict[str, str] | None = None


class InterruptShape(TypedDict):
    """A question that a run waits for."""

    id: str
    value: Any


class FailureShape(TypedDict):
    """Why a run failed: the class of the exception and its message."""

    error: str
    message: str


def show_failure(failure: Failure | None) -> FailureShape | None:
    return None if failure is None else {"error": failure.error, "message": failure.message}


def get_graphs(call: Call) -> NamespaceGraphs:
    """Return the graphs and states of the caller's namespace."""
    return call.app.views_for(call.caller)


# --- ids and times ----------------------------------------------------------------------------------------


def check_uuid(value: str, name: str) -> str:
    """Return an id in its canonical form. Raise InvalidInput if it is not a UUID."""
    try:
        return str(UUID(value))
    except ValueError:
        raise InvalidInput(f"{name} must be a UUID, not {value[:64]!r}") from None


def is_uuid(value: str) -> bool:
    try:
        UUID(value)
    except ValueError:
        return False
    return True


def check_uuid_or_none(value: str | None, name: str) -> str | None:
    return None if value is None else check_uuid(value, name)


def uuid_or_none(value: str | None) -> UUID | None:
    return None if value is None else UUID(value)


def iso(seconds: float) -> str:
    """Format a time as ISO 8601, with its time zone."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def iso_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else iso(seconds)


# --- responses --------------------------------------------------------------------------------------------


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(value), status, dict(headers or {}), JSON)


def no_content() -> Response:
    return Response(status_code=NO_CONTENT)


def page(items: Sequence[Any], total: int, limit: int, offset: int) -> Response:
    """Build a page of a list, with the total and the next offset in headers."""
    headers = {TOTAL: str(total)}
    if offset + limit < total:
        headers[NEXT] = str(offset + limit)
    return answer(items, headers=headers)


def search_page(
    result: PaginatedResult[T], shape: Callable[[T], Mapping[str, Any]], select: Sequence[str] | None
) -> Response:
    """Build a page of a search, with the selected fields of each item."""
    items = [selected(shape(item), select) for item in result.items]
    return page(items, result.counted, result.limit, result.offset)


def selected(record: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Return the requested fields of a record, by default all."""
    return {name: record[name] for name in names or record if name in record}
