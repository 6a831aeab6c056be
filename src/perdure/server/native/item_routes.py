"""The native routes of items."""

from __future__ import annotations

from perdure.access.endpoints import PREFIX
from perdure.client import item_wire
from perdure.client import native_wire as wire
from perdure.items.records import Item
from perdure.kernel.errors import NotFound, NotSupported
from perdure.server.native import item_handlers as handlers
from perdure.server.native.declare import declaring

_items = declaring("items")
_work = declaring("work", PREFIX + "/work")

MAX_BODY = 32 << 20
"""What agents remember may be large."""

ITEM_ROUTES = (
    _items(
        "GET",
        "/items",
        handlers.get_item,
        "read",
        "An item, by its namespace and its key",
        query=item_wire.ItemQuery,
        answer=Item,
        errors=(NotFound, NotSupported),
    ),
    _items(
        "PUT",
        "/items",
        handlers.put_item,
        "write",
        "Keep an item, in the place of what was there",
        body=item_wire.NewItem,
        status=204,
        errors=(NotSupported,),
    ),
    _items(
        "DELETE",
        "/items",
        handlers.delete_item,
        "write",
        "Remove an item, if it is there",
        query=item_wire.ItemName,
        status=204,
        errors=(NotSupported,),
    ),
    _items(
        "POST",
        "/items/search",
        handlers.search_items,
        "read",
        "Items at or below a namespace, those changed last first",
        body=item_wire.ItemSearch,
        answer=wire.Items[Item],
        errors=(NotSupported,),
    ),
    _items(
        "GET",
        "/items/namespaces",
        handlers.list_namespaces,
        "read",
        "The namespaces that hold items",
        query=item_wire.NamespaceQuery,
        answer=item_wire.Namespaces,
        errors=(NotSupported,),
    ),
    _items(
        "POST",
        "/items/batch",
        handlers.batch,
        "write",
        "Read and change many items at once",
        body=item_wire.ItemOps,
        max_body=MAX_BODY,
        answer=item_wire.ItemResults,
        errors=(NotSupported,),
    ),
    _work(
        "POST",
        "/items",
        handlers.batch,
        "worker",
        "Read and change many items at once, for the agents of a worker",
        body=item_wire.ItemOps,
        max_body=MAX_BODY,
        answer=item_wire.ItemResults,
        errors=(NotSupported,),
    ),
)
