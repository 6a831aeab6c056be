"""Items by way of whoever does a batch: for agents, wherever they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from perdure.items.model import check_index, check_labels, check_namespace, encode_value
from perdure.items.records import (
    DEFAULT_LIMIT,
    DEFAULT_NAMESPACES,
    DeleteItem,
    GetItem,
    Item,
    ItemOp,
    ItemResult,
    ListNamespaces,
    PutItem,
    SearchItems,
)
from perdure.items.service import matches_of

T = TypeVar("T")


class ItemCalls(ABC):
    """What is remembered beyond a thread, as an agent reads and writes it."""

    @abstractmethod
    async def batch(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        """Do many things at once: what is read is as it was before; what is written is all or nothing."""

    @abstractmethod
    def wait(self, asking: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do one of these from a thread that cannot await."""

    async def get(
        self, namespace: Sequence[str], key: str, *, refresh_ttl: bool | None = None
    ) -> Item | None:
        """An item, or None if there is none."""
        wanted = GetItem(namespace=list(check_labels(namespace)), key=key, refresh_ttl=refresh_ttl)
        return (await self.batch([wanted]))[0].item

    async def put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Mapping[str, Any],
        *,
        ttl_minutes: float | UnsetType | None = UNSET,
        index: bool | Sequence[str] | None = None,
    ) -> None:
        """Keep a JSON object, in the place of what was there."""
        encode_value(value)
        labels = list(check_namespace(namespace))
        wanted = PutItem(
            namespace=labels, key=key, value=dict(value), ttl_minutes=ttl_minutes, index=check_index(index)
        )
        await self.batch([wanted])

    async def delete(self, namespace: Sequence[str], key: str) -> None:
        """Remove an item; one that is not there is no error."""
        await self.batch([DeleteItem(namespace=list(check_labels(namespace)), key=key)])

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
        wanted = SearchItems(
            namespace_prefix=list(check_labels(namespace_prefix, "namespace_prefix")),
            filter=None if filter is None else dict(filter),
            query=query,
            limit=limit,
            offset=offset,
            refresh_ttl=refresh_ttl,
        )
        return (await self.batch([wanted]))[0].items or []

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
        matches = matches_of(prefix, suffix)
        wanted = ListNamespaces(matches=matches, max_depth=max_depth, limit=limit, offset=offset)
        return [tuple(labels) for labels in (await self.batch([wanted]))[0].namespaces or []]
