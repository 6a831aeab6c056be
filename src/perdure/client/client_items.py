"""Items over HTTP: the same as on the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from perdure.client.api import Api
from perdure.client.item_wire import ItemResults, Namespaces
from perdure.client.native_wire import MAX_BATCH, MAX_PAGE, Items
from perdure.items.model import check_key, check_labels, check_namespace, encode_value
from perdure.items.records import (
    DEFAULT_LIMIT,
    DEFAULT_NAMESPACES,
    Item,
    ItemOp,
    ItemResult,
)
from perdure.kernel.checks import check_number
from perdure.kernel.errors import NotFound


class RemoteItems:
    """The items of a namespace behind a server."""

    def __init__(self, api: Api, path: str = "/items/batch") -> None:
        self._api = api
        self._path = path

    async def get(
        self, namespace: Sequence[str], key: str, *, refresh_ttl: bool | None = None
    ) -> Item | None:
        """An item, or None if there is none."""
        labels = check_labels(namespace)
        if not labels:
            return None
        name = {"namespace": ".".join(labels), "key": check_key(key), "refresh_ttl": refresh_ttl}
        try:
            return await self._api.get(Item, "/items", **name)
        except NotFound:
            return None

    async def put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Mapping[str, Any],
        *,
        ttl_minutes: float | UnsetType | None = UNSET,
        index: bool | Sequence[str] | None = None,
    ) -> None:
        """Keep a JSON object, in the place of what was there.

        Without `ttl_minutes` it lasts as long as the server's policy says, with None for ever.
        """
        encode_value(value)
        labels = list(check_namespace(namespace))
        body: dict[str, Any] = {
            "namespace": labels,
            "key": check_key(key),
            "value": dict(value),
            "index": index,
        }
        if ttl_minutes is not UNSET:
            body["ttl_minutes"] = ttl_minutes
        await self._api.tell("PUT", "/items", body)

    async def delete(self, namespace: Sequence[str], key: str) -> None:
        """Remove an item; one that is not there is no error."""
        labels = check_labels(namespace)
        if labels:
            await self._api.tell("DELETE", "/items", namespace=".".join(labels), key=check_key(key))

    async def search(
        self,
        namespace_prefix: Sequence[str] = (),
        *,
        filter: Mapping[str, Any] | None = None,
        query: str | None = None,
        limit: int = DEFAULT_LIMIT,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[Item]:
        """Items at or below a namespace that fit a filter, those changed last first."""
        check_number(limit, "limit")
        wanted = {
            "namespace_prefix": check_labels(namespace_prefix, "namespace_prefix"),
            "filter": filter,
            "query": query,
            "refresh_ttl": refresh_ttl,
        }
        found: list[Item] = []
        while len(found) < limit:
            most = min(MAX_PAGE, limit - len(found))
            body = wanted | {"limit": most, "offset": offset + len(found)}
            page = await self._api.send(Items[Item], "POST", "/items/search", body)
            found += page.items
            if len(page.items) < most:
                break
        return found

    async def list_namespaces(
        self,
        *,
        prefix: Sequence[str] | None = None,
        suffix: Sequence[str] | None = None,
        max_depth: int | None = None,
        limit: int = DEFAULT_NAMESPACES,
        offset: int = 0,
    ) -> list[tuple[str, ...]]:
        """The namespaces that hold items, in their order; `*` in a prefix or suffix stands for any label."""
        check_number(limit, "limit")
        wanted = {"prefix": _dotted(prefix, "prefix"), "suffix": _dotted(suffix, "suffix")}
        found: list[tuple[str, ...]] = []
        while len(found) < limit:
            most = min(MAX_PAGE, limit - len(found))
            page = await self._api.get(
                Namespaces,
                "/items/namespaces",
                **wanted,
                max_depth=max_depth,
                limit=most,
                offset=offset + len(found),
            )
            found += [tuple(labels) for labels in page.namespaces]
            if len(page.namespaces) < most:
                break
        return found

    async def batch(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        """Do many things at once: what is read is as it was before; what is written is all or nothing."""
        results: list[ItemResult] = []
        for start in range(0, len(ops), MAX_BATCH):
            part = list(ops[start : start + MAX_BATCH])
            found = await self._api.send(ItemResults, "POST", self._path, {"ops": part})
            results += found.results
        return results


def _dotted(labels: Sequence[str] | None, what: str) -> str | None:
    return ".".join(check_labels(labels, what)) if labels else None
