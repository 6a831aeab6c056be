"""The store of the LangGraph protocol: items by namespace and key."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from perdure.items.model import MAX_KEY, MAX_LABELS, MAX_PATH
from perdure.items.records import DEFAULT_LIMIT, DEFAULT_NAMESPACES, Item
from perdure.kernel.errors import BadRequest
from perdure.server.http.routes import Call
from perdure.server.langgraph.protocol import Offset, RequestBody, answer, iso, no_content
from perdure.server.langgraph.routing import Authorization, LangGraphResource, Rule, before, get_fields

store = LangGraphResource("store")

MAX_FOUND = 10_000

Labels = Annotated[list[str], Meta(max_length=MAX_LABELS)]
Key = Annotated[str, Meta(max_length=MAX_KEY)]
StoreLimit = Annotated[int, Meta(ge=0, le=MAX_FOUND)]


def show_item(item: Item) -> dict[str, Any]:
    return {
        "namespace": item.namespace,
        "key": item.key,
        "value": item.value,
        "created_at": iso(item.created_at),
        "updated_at": iso(item.updated_at),
    }


def on_store(action: str, field: str = "namespace") -> Rule:
    """Build a rule for an action in the namespace of a body's field. The handler may replace it."""

    async def check(request: Authorization) -> None:
        body = request.call.body
        value = get_fields(body)
        value["namespace"] = tuple(value.pop(field, None) or ())
        # Items have no metadata, so a filter does not apply.
        await request.authorize("store", action, value)
        setattr(body, field, [str(label) for label in value.get("namespace") or ()])

    return before(check)


class NewStoreItem(RequestBody, kw_only=True):
    """An item to store or replace; `ttl` is in minutes."""

    namespace: Labels
    key: Key
    value: dict[str, Any]
    index: bool | list[str] | None = None
    ttl: float | UnsetType | None = UNSET


@store.route(
    "PUT",
    "/store/items",
    rule=on_store("put"),
    scope="write",
    summary="Store or replace an item",
    body=NewStoreItem,
    status=204,
    errors=(BadRequest,),
)
async def put_item(call: Call) -> Response:
    body: NewStoreItem = call.body
    if not body.namespace:
        raise BadRequest("the namespace must not be empty")
    await call.items.put(body.namespace, body.key, body.value, ttl_minutes=body.ttl, index=body.index)
    return no_content()


class StoreItemQuery(msgspec.Struct, kw_only=True):
    """The item to read: its namespace with periods between the labels, and its key."""

    namespace: Annotated[str, Meta(max_length=MAX_PATH)] = ""
    key: Key = ""
    refresh_ttl: bool | None = None


@before
async def _authorize_get(request: Authorization) -> None:
    query: StoreItemQuery = request.call.query
    labels = tuple(query.namespace.split(".")) if query.namespace else ()
    value = {"namespace": labels, "key": query.key}
    await request.authorize("store", "get", value)
    query.namespace, query.key = ".".join(map(str, value["namespace"])), str(value["key"])


@store.route(
    "GET",
    "/store/items",
    rule=_authorize_get,
    scope="read",
    summary="Get an item; null if there is none",
    query=StoreItemQuery,
    answer=dict[str, Any] | None,
    errors=(BadRequest,),
)
async def get_item(call: Call) -> Response:
    query: StoreItemQuery = call.query
    if not query.key:
        raise BadRequest("key is required")
    item = await call.items.get(query.namespace.split("."), query.key, refresh_ttl=query.refresh_ttl)
    return answer(None if item is None else show_item(item))


class StoreItemName(RequestBody, kw_only=True):
    """The item to delete."""

    namespace: Labels = msgspec.field(default_factory=list)
    key: Key


@store.route(
    "DELETE",
    "/store/items",
    rule=on_store("delete"),
    scope="write",
    summary="Delete an item, if it exists",
    body=StoreItemName,
    status=204,
)
async def delete_item(call: Call) -> Response:
    body: StoreItemName = call.body
    await call.items.delete(body.namespace, body.key)
    return no_content()


class StoreSearch(RequestBody, kw_only=True):
    """Items at or below a namespace, by time of the last change or by similarity to a query."""

    namespace_prefix: Labels | None = None
    filter: dict[str, Any] | None = None
    limit: StoreLimit | None = None
    offset: Offset | None = None
    query: str | None = None
    refresh_ttl: bool | None = None


@store.route(
    "POST",
    "/store/items/search",
    rule=on_store("search", "namespace_prefix"),
    scope="read",
    summary="Search items at or below a namespace, last changed first",
    body=StoreSearch,
    answer=dict[str, list[dict[str, Any]]],
)
async def search_items(call: Call) -> Response:
    body: StoreSearch = call.body
    items = await call.items.search(
        body.namespace_prefix or (),
        filter=body.filter,
        query=body.query,
        limit=body.limit or DEFAULT_LIMIT,
        offset=body.offset or 0,
        refresh_ttl=body.refresh_ttl,
    )
    return answer({"items": [show_item(item) | {"score": item.score} for item in items]})


class StoreNamespaces(RequestBody, kw_only=True):
    """Filter of listed namespaces; the label `*` matches any."""

    prefix: Labels | None = None
    suffix: Labels | None = None
    max_depth: Annotated[int, Meta(ge=1, le=MAX_LABELS)] | None = None
    limit: StoreLimit = DEFAULT_NAMESPACES
    offset: Offset = 0


@store.route(
    "POST",
    "/store/namespaces",
    rule=on_store("list_namespaces", "prefix"),
    scope="read",
    summary="List the namespaces that hold items",
    body=StoreNamespaces,
    answer=dict[str, list[list[str]]],
)
async def list_namespaces(call: Call) -> Response:
    body: StoreNamespaces = call.body
    namespaces = await call.items.list_namespaces(
        prefix=body.prefix,
        suffix=body.suffix,
        max_depth=body.max_depth,
        limit=body.limit,
        offset=body.offset,
    )
    return answer({"namespaces": namespaces.items})
