"""The routes of the LangGraph protocol's store."""

from __future__ import annotations

from typing import Any

from perdure.kernel.errors import BadRequest, NotFound, NotSupported
from perdure.server.langgraph import store_handlers as handlers
from perdure.server.langgraph.declare import declaring

_store = declaring("store")

STORE_ROUTES = (
    _store(
        "PUT",
        "/store/items",
        handlers.put_item,
        "write",
        "Keep an item, in the place of what was there",
        body=handlers.NewStoreItem,
        status=204,
        errors=(NotSupported,),
    ),
    _store(
        "GET",
        "/store/items",
        handlers.get_item,
        "read",
        "An item, by its namespace and its key",
        query=handlers.StoreItemQuery,
        answer=dict[str, Any],
        errors=(BadRequest, NotFound, NotSupported),
    ),
    _store(
        "DELETE",
        "/store/items",
        handlers.delete_item,
        "write",
        "Remove an item, if it is there",
        body=handlers.StoreItemName,
        status=204,
        errors=(NotSupported,),
    ),
    _store(
        "POST",
        "/store/items/search",
        handlers.search_items,
        "read",
        "Items at or below a namespace, those changed last first",
        body=handlers.StoreSearch,
        answer=dict[str, list[dict[str, Any]]],
        errors=(NotSupported,),
    ),
    _store(
        "POST",
        "/store/namespaces",
        handlers.list_namespaces,
        "read",
        "The namespaces that hold items",
        body=handlers.StoreNamespaces,
        answer=dict[str, list[list[str]]],
        errors=(NotSupported,),
    ),
)
