"""The store of the LangGraph protocol: items by namespace and key."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from perdure.client.native_wire import Offset
from perdure.items.model import MAX_KEY, MAX_LABELS, MAX_PATH
from perdure.items.records import DEFAULT_LIMIT, DEFAULT_NAMESPACES, Item
from perdure.kernel.errors import BadRequest, NotFound
from perdure.server.http.routes import Call
from perdure.server.langgraph.wire import Body, answer, iso, nothing
from perdure.server.native.item_handlers import items_of, labels_of

MAX_FOUND = 10_000

Labels = Annotated[list[str], Meta(max_length=MAX_LABELS)]
Key = Annotated[str, Meta(max_length=MAX_KEY)]
Limit = Annotated[int, Meta(ge=0, le=MAX_FOUND)]


class NewStoreItem(Body, kw_only=True):
    """An item that is kept in the place of what was there; `ttl` is in minutes."""

    namespace: Labels
    key: Key
    value: dict[str, Any]
    index: bool | list[str] | None = None
    ttl: float | UnsetType | None = UNSET


class StoreItemName(Body, kw_only=True):
    """Which item is to go."""

    namespace: Labels = msgspec.field(default_factory=list)
    key: Key


class StoreItemQuery(msgspec.Struct, kw_only=True):
    """Which item is read: its namespace with periods between the labels, and its key."""

    namespace: Annotated[str, Meta(max_length=MAX_PATH)] = ""
    key: Key = ""
    refresh_ttl: bool | None = None


class StoreSearch(Body, kw_only=True):
    """Items at or below a namespace, those changed last first, or the nearest to a query first."""

    namespace_prefix: Labels | None = None
    filter: dict[str, Any] | None = None
    limit: Limit | None = None
    offset: Offset | None = None
    query: str | None = None
    refresh_ttl: bool | None = None


class StoreNamespaces(Body, kw_only=True):
    """Which namespaces; the label `*` stands for any."""

    prefix: Labels | None = None
    suffix: Labels | None = None
    max_depth: Annotated[int, Meta(ge=1, le=MAX_LABELS)] | None = None
    limit: Limit = DEFAULT_NAMESPACES
    offset: Offset = 0


async def put_item(call: Call) -> Response:
    body: NewStoreItem = call.body
    await items_of(call).put(body.namespace, body.key, body.value, ttl_minutes=body.ttl, index=body.index)
    return nothing()


async def get_item(call: Call) -> Response:
    query: StoreItemQuery = call.query
    if not query.key:
        raise BadRequest("key is required")
    labels = labels_of(query.namespace)
    item = await items_of(call).get(labels, query.key, refresh_ttl=query.refresh_ttl)
    if item is None:
        raise NotFound(f"Item {query.key} not found in the namespace {query.namespace}")
    return answer(item_of(item))


async def delete_item(call: Call) -> Response:
    body: StoreItemName = call.body
    await items_of(call).delete(body.namespace, body.key)
    return nothing()


async def search_items(call: Call) -> Response:
    body: StoreSearch = call.body
    found = await items_of(call).search(
        body.namespace_prefix or (),
        filter=body.filter,
        query=body.query,
        limit=body.limit or DEFAULT_LIMIT,
        offset=body.offset or 0,
        refresh_ttl=body.refresh_ttl,
    )
    return answer({"items": [item_of(item) | {"score": item.score} for item in found]})


async def list_namespaces(call: Call) -> Response:
    body: StoreNamespaces = call.body
    found = await items_of(call).list_namespaces(
        prefix=body.prefix,
        suffix=body.suffix,
        max_depth=body.max_depth,
        limit=body.limit,
        offset=body.offset,
    )
    return answer({"namespaces": found})


def item_of(item: Item) -> dict[str, Any]:
    """An item as `langgraph_sdk` reads it."""
    return {
        "namespace": item.namespace,
        "key": item.key,
        "value": item.value,
        "created_at": iso(item.created_at),
        "updated_at": iso(item.updated_at),
    }
