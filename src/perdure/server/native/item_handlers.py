"""Items: what agents remember beyond a thread."""

from __future__ import annotations

from starlette.responses import Response

from perdure.client import item_wire
from perdure.client import native_wire as wire
from perdure.client.native_wire import MAX_PAGE
from perdure.items.records import Item, ListNamespaces, SearchItems
from perdure.items.service import Items
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.server.http.routes import Call


def items_of(call: Call) -> Items:
    """The items of the caller's namespace, changed in the name of the caller."""
    return call.services.items


async def get_item(call: Call) -> Item:
    query: item_wire.ItemQuery = call.query
    labels = labels_of(query.namespace)
    item = await items_of(call).get(labels, query.key, refresh_ttl=query.refresh_ttl)
    if item is None:
        raise NotFound(f"Item {query.key} not found in the namespace {query.namespace}")
    return item


async def put_item(call: Call) -> Response:
    body: item_wire.NewItem = call.body
    await items_of(call).put(
        body.namespace, body.key, body.value, ttl_minutes=body.ttl_minutes, index=body.index
    )
    return Response(status_code=204)


async def delete_item(call: Call) -> Response:
    query: item_wire.ItemName = call.query
    await items_of(call).delete(labels_of(query.namespace), query.key)
    return Response(status_code=204)


async def search_items(call: Call) -> wire.Items[Item]:
    body: item_wire.ItemSearch = call.body
    found = await items_of(call).search(
        body.namespace_prefix,
        filter=body.filter,
        query=body.query,
        limit=body.limit,
        offset=body.offset,
        refresh_ttl=body.refresh_ttl,
    )
    return wire.Items(items=found)


async def list_namespaces(call: Call) -> item_wire.Namespaces:
    query: item_wire.NamespaceQuery = call.query
    found = await items_of(call).list_namespaces(
        prefix=query.prefix and labels_of(query.prefix),
        suffix=query.suffix and labels_of(query.suffix),
        max_depth=query.max_depth,
        limit=query.limit,
        offset=query.offset,
    )
    return item_wire.Namespaces(namespaces=[list(labels) for labels in found])


async def batch(call: Call) -> item_wire.ItemResults:
    body: item_wire.ItemOps = call.body
    for op in body.ops:
        if isinstance(op, SearchItems | ListNamespaces) and op.limit > MAX_PAGE:
            raise InvalidInput(f"limit is {op.limit}; at most {MAX_PAGE} can be asked for at once")
    return item_wire.ItemResults(results=await items_of(call).batch(body.ops))


def labels_of(dotted: str) -> list[str]:
    """The labels of a namespace as it stands in an address."""
    return dotted.split(".")
