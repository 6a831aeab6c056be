"""The Agent-lightning protocol: its errors, the declaration of its routes, and its searches.

Its clients retry after every 5xx and never after a 4xx. So an error that a retry cannot cure is a 400, and a
write with an unknown outcome that must not happen twice is a 409. Responses to searches have any length in
bounded memory.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar, cast

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from perdure.client.lightning_wire import PREFIX
from perdure.kernel.errors import (
    BadBody,
    BadQuery,
    Conflict,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    PerdureError,
    SpansEvicted,
)
from perdure.kernel.pages import QueryPage
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.records import Attempt, PaginatedResult, Rollout, Worker
from perdure.rollouts.resources import ResourcesUpdate
from perdure.rollouts.store import DatabaseLightningStore
from perdure.server.http.bodies import encode
from perdure.server.http.routes import Call, Handler, Route
from perdure.service.callers import Scope
from perdure.spans.records import Span

T = TypeVar("T")
H = TypeVar("H", bound=Handler)

LONGEST_INPUT = 1000
"""Maximum bytes of a bad input that the response quotes."""

_APPLICATION = (InvalidInput, NotFound, Conflict, SpansEvicted)
_IN_RECORD = re.compile(r"\b[A-Z]\w*\.(\w+)(?=: | is required| must )")
_TYPES = {
    "missing": "missing",
    "is required": "missing",
    "not JSON": "json_invalid",
    "must be one of": "literal_error",
    "Invalid enum value": "literal_error",
    "expected one of": "literal_error",
    "unknown resource_type": "union_tag_invalid",
}
_WANTED = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_KINDS = {"object": "dict", "array": "list", "str": "string", "int": "int", "float": "float", "bool": "bool"}


class LightningProtocol:
    """Error responses of the Agent-lightning protocol."""

    name = "lightning"

    def refuse(self, error: PerdureError, request_id: str, request: Request) -> Response:
        """Build the error as `agentlightning` clients read it, plus its code and the request's id."""
        detail = [_schema_error(error)] if isinstance(error, BadBody) else str(error)
        body = {
            "detail": detail,
            "error_type": type(error).__name__,
            "code": error.code,
            "request_id": request_id,
        }
        return Response(encode(body), _status(error, request), media_type="application/json")


def do_not_repeat(request: Request) -> None:
    """Mark a request whose repetition could do its work twice."""
    request.state.repeatable = False


def _status(error: PerdureError, request: Request) -> int:
    if isinstance(error, BadBody):
        return 422
    if isinstance(error, OutcomeUnknown) and not getattr(request.state, "repeatable", True):
        return 409
    return 400 if isinstance(error, _APPLICATION) else error.http_status


def _schema_error(error: BadBody) -> dict[str, Any]:
    """Build the entry that FastAPI has in its error list for an invalid body or query."""
    within = _IN_RECORD.findall(error.message)
    kind = _schema_error_type(error)
    message = "Field required" if kind == "missing" else error.message
    given = _within(error.given, within[:-1] if kind == "missing" else within)
    return {"type": kind, "loc": [*error.location, *within], "msg": message, "input": _shown(given)}


def _schema_error_type(error: BadBody) -> str:
    for words, kind in _TYPES.items():
        if words in error.message:
            return kind
    wanted = _WANTED.search(error.message)
    if wanted is None:
        return "value_error"
    kind = _KINDS.get(wanted[1].partition(" ")[0], "value")
    return f"{kind}_parsing" if wanted[2] == "str" and kind in ("int", "float", "bool") else f"{kind}_type"


def _within(given: Any, names: list[str]) -> Any:
    for name in names:
        given = given.get(name) if isinstance(given, dict) else None
    return given


def _shown(given: Any) -> Any:
    """Return the value, or None if it is too long to quote."""
    return given if len(encode(given)) <= LONGEST_INPUT else None


LIGHTNING = LightningProtocol()


class LightningResource:
    """Routes of one resource; `get` and `post` declare the decorated function as a handler."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str, scope: Scope | None, summary: str, **rest: Any) -> Callable[[H], H]:
        return partial(self._declare, "GET", path, scope, summary, False, rest)

    def post(
        self, path: str, scope: Scope, summary: str, *, once: bool = False, **rest: Any
    ) -> Callable[[H], H]:
        """Declare a POST route. `once`: without an idempotency key, the write must not be repeated."""
        return partial(self._declare, "POST", path, scope, summary, once, rest)

    def _declare(
        self,
        method: str,
        path: str,
        scope: Scope | None,
        summary: str,
        once: bool,
        rest: dict[str, Any],
        handler: H,
    ) -> H:
        route = Route(
            method=method,
            path=PREFIX + path,
            handler=_once(handler) if once else handler,
            protocol=LIGHTNING,
            scope=scope,
            summary=summary,
            tag="agent-lightning",
            **rest,
        )
        self.routes.append(route)
        return handler


def _once(handler: Handler) -> Handler:
    @wraps(handler)
    async def marked(call: Call) -> Any:
        if call.idempotency_key is None:
            do_not_repeat(call.request)
        return await handler(call)

    return marked


def ours(store: LightningStore, *methods: str) -> DatabaseLightningStore | None:
    """Return the store if it uses our own methods, which accept decoded requests; otherwise None."""
    if not isinstance(store, DatabaseLightningStore):
        return None
    kind, own = type(store), DatabaseLightningStore
    return store if all(getattr(kind, name) is getattr(own, name) for name in methods) else None


def get_key_argument(call: Call) -> dict[str, Any]:
    """Return the idempotency key as an argument, if the caller sent one."""
    return {} if call.idempotency_key is None else {"idempotency_key": call.idempotency_key}


def set_fields(body: msgspec.Struct, *, mandatory: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields that the caller set. A mandatory field must not be null."""
    given = {name: value for name, value in structs.asdict(body).items() if value is not msgspec.UNSET}
    for name in mandatory:
        if name in given and given[name] is None:
            raise InvalidInput(f"{name} is invalid; it cannot be a null value.")
    return given


async def gather(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await calls concurrently. After all have ended, return their results or raise the first error."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast(list[T], answers)


# --- searches ---------------------------------------------------------------------------------------------


PAGE = 1000
"""Maximum items in memory at once."""

Ask = Callable[..., Awaitable[PaginatedResult[Any]]]


@dataclass(frozen=True, slots=True)
class LightningListing:
    """A searchable list: the store's method, the fields of its records, and the key of a record."""

    method: str
    fields: tuple[str, ...]
    key: tuple[str, ...]


# The contract has no parents.
_ROLLOUT_FIELDS = tuple(name for name in Rollout.__struct_fields__ if name != "parent")
ROLLOUTS = LightningListing("query_rollouts", _ROLLOUT_FIELDS, ("rollout_id",))
ATTEMPTS = LightningListing("query_attempts", Attempt.__struct_fields__, ("attempt_id",))
RESOURCES = LightningListing("query_resources", ResourcesUpdate.__struct_fields__, ("resources_id",))
SPANS = LightningListing(
    "query_spans", tuple(field.name for field in Span._declared), ("attempt_id", "span_id")
)
WORKERS = LightningListing("query_workers", Worker.__struct_fields__, ("worker_id",))


async def listed(listing: LightningListing, store: LightningStore, search: Any, **fixed: Any) -> Any:
    """Answer a search with one page, or with a stream of pages if one page is too short."""
    _check(listing, search)
    terms = {**structs.asdict(search), **fixed}
    limit, offset = terms.pop("limit"), terms.pop("offset")
    ask = partial(getattr(store, listing.method), **terms)
    size = PAGE if limit == -1 else min(limit, PAGE)
    first: PaginatedResult[Any] = await ask(limit=size, offset=offset)
    if len(first.items) < size or size == limit or offset + size >= first.counted:
        return QueryPage(items=list(first.items), limit=limit, offset=offset, total=first.counted)
    return StreamingResponse(_stream(listing, ask, first, limit, offset), media_type="application/json")


def _check(listing: LightningListing, search: Any) -> None:
    if search.sort_by is not None and search.sort_by not in listing.fields:
        allowed = ", ".join(listing.fields)
        raise BadQuery(f"Invalid sort_by: {search.sort_by}, allowed fields are: {allowed}")
    if search.limit == 0 or search.limit < -1:
        raise BadQuery("Limit must be greater than 0 or -1 for no limit")
    if search.offset < 0:
        raise BadQuery("Offset must be greater than or equal to 0")


async def _stream(
    listing: LightningListing, ask: Ask, first: PaginatedResult[Any], limit: int, offset: int
) -> AsyncIterator[bytes]:
    """Yield the JSON text of a long response; its end holds the total."""
    sent = 0
    async for items in _pages(listing, ask, first, limit, offset):
        yield (b"," if sent else b'{"items":[') + encode(items)[1:-1]
        sent += len(items)
    total = offset + sent if limit == -1 else first.counted
    yield f'],"limit":{limit},"offset":{offset},"total":{total}}}'.encode()


async def _pages(
    listing: LightningListing, ask: Ask, first: PaginatedResult[Any], limit: int, offset: int
) -> AsyncIterator[list[Any]]:
    """Yield page after page. Skip items that concurrent writes have moved from one page to the next."""
    page, seen, read = list(first.items), frozenset[tuple[Any, ...]](), 0
    while page:
        keys = [tuple(getattr(item, name) for name in listing.key) for item in page]
        fresh = [item for item, key in zip(page, keys, strict=True) if key not in seen]
        if fresh:
            yield fresh
        read += len(page)
        left = PAGE if limit == -1 else min(PAGE, limit - read)
        if len(page) < PAGE or left == 0:
            return
        seen = frozenset(keys)
        page = list((await ask(limit=left, offset=offset + read)).items)
