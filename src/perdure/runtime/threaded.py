"""A store for many threads and event loops, over a store that may be safe in only one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from perdure.kernel.background import Background
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.records import LightningStoreCapabilities
from perdure.service.callers import Caller

_LOCKED = frozenset(
    {
        "start_rollout",
        "enqueue_rollout",
        "enqueue_many_rollouts",
        "dequeue_rollout",
        "dequeue_many_rollouts",
        "start_attempt",
        "add_span",
        "add_many_spans",
        "add_otel_span",
        "add_resources",
        "update_resources",
        "get_next_span_sequence_id",
        "get_many_span_sequence_ids",
        "update_rollout",
        "update_attempt",
        "update_worker",
    }
)
"""Calls that change the store. They run one at a time if the store is not async-safe."""


class LightningStoreThreaded(LightningStore):
    """Runs every call of the wrapped store in its own event loop, from any thread or loop.

    Calls that change the store run one at a time, unless the store is async-safe.
    """

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self._portal = Background("perdure-threaded")
        self._lock: asyncio.Lock | None = None if store.capabilities.get("async_safe") else asyncio.Lock()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            **{**self.store.capabilities, "thread_safe": True, "async_safe": True}
        )

    def in_namespace(self, namespace: str) -> LightningStoreThreaded:
        return self._sibling(self.store.in_namespace(namespace))

    def acting_as(self, caller: Caller) -> LightningStoreThreaded:
        return self._sibling(self.store.acting_as(caller))

    def _sibling(self, store: LightningStore) -> LightningStoreThreaded:
        sibling = LightningStoreThreaded(store)
        sibling._portal, sibling._lock = self._portal, self._lock
        return sibling

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()

    async def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        method = getattr(self.store, name)
        if name in _LOCKED and self._lock is not None:
            async with self._lock:
                return await method(*args, **kwargs)
        return await method(*args, **kwargs)

    async def close(self) -> None:
        """Close the wrapped store, and end the thread."""
        await self._portal.ask(self.store.close)
        self._portal.close()


def _forward(name: str, contract: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(contract)
    async def method(self: LightningStoreThreaded, *args: Any, **kwargs: Any) -> Any:
        return await self._portal.ask(lambda: self._call(name, args, kwargs))

    return method


for _name, _contract in inspect.getmembers(LightningStore, inspect.iscoroutinefunction):
    if not _name.startswith("_") and _name != "close":
        setattr(LightningStoreThreaded, _name, _forward(_name, _contract))
