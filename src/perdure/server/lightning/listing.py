"""Searches: their parameters, and responses of any length in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import structs
from starlette.responses import StreamingResponse

from perdure.kernel.errors import BadQuery
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.records import Attempt, PaginatedResult, Rollout, Worker
from perdure.rollouts.resources import ResourcesUpdate
from perdure.server.http.bodies import encode
from perdure.spans.records import Span

PAGE = 1000
"""Maximum items in memory at once."""

T = TypeVar("T")


# Not a Page, because the contract of Agent-lightning has no `next`.
class QueryPage(msgspec.Struct, Generic[T], kw_only=True):
    """A page of a query, with the total number of items."""

    items: list[T]
    limit: int
    offset: int
    total: int


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
