"""LangGraph's store in a perdure database."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from langgraph.store.base import IndexConfig, TTLConfig, ensure_embeddings

from perdure.agents.sections import parse_item_policy
from perdure.integrations.langgraph.opening import OpenedDatabase, Place
from perdure.items.service import Items
from perdure.items.vectors import ItemIndex
from perdure.langgraph.store import ItemStore


class PerdureStore(ItemStore):
    """The long-term memory of agents as a LangGraph store, in a perdure database.

    `place` is a file, the URL of a database, or an object with an open database, such as a `Perdure`. Use it
    with `with` or `async with`, or close it; a database that was passed in open stays open. `ttl` is the
    lifetime of items, and `index` configures the search by meaning, as for LangGraph's other stores.
    """

    def __init__(
        self,
        place: Place,
        *,
        namespace: str | None = None,
        ttl: TTLConfig | None = None,
        index: IndexConfig | None = None,
    ) -> None:
        policy, searched = parse_item_policy(ttl or {}), _index(index)
        self._opened = OpenedDatabase(place, namespace)
        self.items = Items(
            self._opened.storage, namespace=self._opened.namespace, policy=policy, index=searched
        )
        self.items.start_timers()
        super().__init__(self.items.run, self._opened.wait, ttl)

    def sweep_ttl(self) -> int:
        """Delete expired items now, and return their number. They are invisible in any case."""
        return self._opened.wait(self.items.expire)

    async def asweep_ttl(self) -> int:
        """Delete expired items now, for callers with an event loop."""
        return await self.items.expire()

    def close(self) -> None:
        """Close the database, if it was opened here."""
        self._opened.close()

    async def aclose(self) -> None:
        """Close the database, if it was opened here, for callers with an event loop."""
        await self._opened.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _index(given: IndexConfig | None) -> ItemIndex | None:
    if not given:
        return None
    embed = ensure_embeddings(given.get("embed"))
    return ItemIndex(embed, dims=given.get("dims"), fields=given.get("fields"))
