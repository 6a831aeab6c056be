"""LangGraph's store over perdure's items, local or remote, and the memory of the run that executes a graph.

Needs `perdure[langgraph]`. Tools that are created before the run get its memory from a context variable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NamedTuple

from langgraph.store.base import (
    BaseStore,
    GetOp,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)
from langgraph.store.base import Item as LangGraphItem
from msgspec import UNSET

from perdure.agents.context import Context, MemorySearch
from perdure.items.records import (
    DeleteItem,
    GetItem,
    Item,
    ItemOp,
    ItemResult,
    ListNamespaces,
    NamespaceMatch,
    PutItem,
    SearchItems,
)
from perdure.kernel.errors import InvalidInput

Batch = Callable[[Sequence[ItemOp]], Awaitable[list[ItemResult]]]
"""Executes operations on items."""
Wait = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]
"""Runs a coroutine for a thread that cannot await."""

SERVER_TTL: Any = {"default_ttl": UNSET, "refresh_on_read": None}
"""Time to live that leaves the decision to the settings of the items."""


class ItemStore(BaseStore):
    """LangGraph store over items."""

    supports_ttl = True

    def __init__(self, batch: Batch, wait: Wait, ttl: TTLConfig | None = None) -> None:
        self._batch = batch
        self._wait = wait
        self.ttl_config = SERVER_TTL if ttl is None else ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations and return their results."""
        wanted = list(ops)
        results: list[Result] = self._wait(lambda: self.abatch(wanted))
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations. Reads do not see the writes of the same batch."""
        wanted = list(ops)
        results = await self._batch([_item_op(op) for op in wanted])
        return [_result(op, result) for op, result in zip(wanted, results, strict=True)]


def _item_op(op: Op) -> ItemOp:
    if isinstance(op, GetOp):
        return GetItem(namespace=_labels(op.namespace), key=op.key, refresh_ttl=op.refresh_ttl)
    if isinstance(op, PutOp):
        return _put(op)
    if isinstance(op, SearchOp):
        return SearchItems(
            namespace_prefix=_labels(op.namespace_prefix),
            filter=op.filter,
            query=op.query,
            limit=op.limit,
            offset=op.offset,
            refresh_ttl=op.refresh_ttl,
        )
    if isinstance(op, ListNamespacesOp):
        matches = [
            NamespaceMatch(kind=match.match_type, path=_labels(match.path))
            for match in op.match_conditions or ()
        ]
        return ListNamespaces(matches=matches, max_depth=op.max_depth, limit=op.limit, offset=op.offset)
    raise InvalidInput(f"a store has no operation {type(op).__name__}")


def _put(op: PutOp) -> PutItem | DeleteItem:
    namespace = _labels(op.namespace)
    if op.value is None:
        return DeleteItem(namespace=namespace, key=op.key)
    index = None if op.index is None or op.index is False else list(op.index)
    return PutItem(
        namespace=namespace,
        key=op.key,
        value=dict(op.value),
        ttl_minutes=op.ttl,
        index=False if op.index is False else index,
    )


def _labels(namespace: Any) -> Any:
    # A string is refused later; `list` would split it into letters.
    return namespace if isinstance(namespace, str) else list(namespace)


def _result(op: Op, result: ItemResult) -> Result:
    if isinstance(op, GetOp):
        return None if result.item is None else LangGraphItem(**_fields(result.item))
    if isinstance(op, SearchOp):
        return [SearchItem(**_fields(item), score=item.score) for item in result.items or ()]
    if isinstance(op, ListNamespacesOp):
        return [tuple(labels) for labels in result.namespaces or ()]
    return None


def _fields(item: Item) -> dict[str, Any]:
    return {
        "namespace": tuple(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": datetime.fromtimestamp(item.created_at, UTC),
        "updated_at": datetime.fromtimestamp(item.updated_at, UTC),
    }


# --- memory of the run ------------------------------------------------------------------------------------


class RunMemory(NamedTuple):
    """Memory that a tool searches in a run, and a way to wait in a thread without an event loop."""

    memory: MemorySearch
    wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


_current: ContextVar[RunMemory | None] = ContextVar("perdure_run_memory", default=None)


def enter_run(ctx: Context) -> None:
    """Let tools in this task and its child tasks search the memory of a run."""
    if ctx.memory is not None and ctx.items is not None:
        _current.set(RunMemory(ctx.memory, ctx.items.wait))


def memory_of_run() -> RunMemory | None:
    """Return the memory of the current run; None outside of a run."""
    return _current.get()
