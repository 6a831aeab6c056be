"""The base of the threads' services until they use `WatchedService` itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, TypeVar

from perdure.access.model import Caller, decode_answers
from perdure.access.operations import once
from perdure.kernel.storage.port import Operation, Storage
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations.conditions import SweepDue, unless_overdue
from perdure.rollouts.operations.noted import NOTES, noted
from perdure.rollouts.watchdog import WatchedService

T = TypeVar("T")
Keys = Sequence[str] | None
KeyedBatch = Callable[..., Awaitable[Sequence[Any]]]


class Runner(WatchedService):
    """A `WatchedService` whose audit entries are written around its operations, and not in them."""

    def __init__(
        self, storage: Storage, kinds: Kinds, *, namespace: str = "default", actor: str | None = None
    ) -> None:
        caller = None if actor is None else Caller.trusted(actor, namespace)
        super().__init__(storage, kinds, namespace=namespace, caller=caller)
        self._kinds = kinds

    async def _ns(self) -> int:
        return await self.ns()

    def _chain(self, operation: Operation[..., Any], args: tuple[Any, ...], keys: Keys) -> Any:
        call: tuple[Any, ...] = (operation,) if self.actor is None else (noted, self.actor, operation)
        return (*call, *args) if keys is None else (once, keys, NOTES[operation].action, call, *args)

    async def _write(self, operation: Operation[..., T], *args: Any, keys: Keys = None) -> T:
        result: T = await self.storage.run(*self._chain(operation, args, keys), ns=await self.ns())
        return result

    async def _write_watched(self, operation: Operation[..., T], *args: Any, keys: Keys = None) -> T:
        ns = await self.ns()
        chain = self._chain(operation, args, keys)
        result: T
        try:
            result = await self.storage.run(unless_overdue, *chain, ns=ns)
        except SweepDue:
            await self.watchdog.sweep()
            result = await self.storage.run(*chain, ns=ns)
        return result

    def _once(self, lane: Hashable, batch: KeyedBatch, item: Any, key: str) -> asyncio.Future[Any]:
        async def keyed(calls: Sequence[tuple[str, Any]]) -> Sequence[Any]:
            answers = await batch([item for _, item in calls], keys=[key for key, _ in calls])
            return decode_answers(answers)

        return self._merger.call(("once", lane), keyed, (key, item))

    async def _read(self, operation: Operation[..., T], *args: Any) -> T:
        return await self.storage.read(operation, *args, ns=await self.ns())

    async def _read_watched(self, operation: Operation[..., T], *args: Any) -> T:
        ns = await self.ns()
        try:
            return await self.storage.read(unless_overdue, operation, *args, ns=ns)
        except SweepDue:
            await self.watchdog.sweep()
            return await self.storage.read(operation, *args, ns=ns)

    def _return(self, give_back: Callable[[], Awaitable[None]]) -> None:
        self.release_later(give_back)

    async def _finish_returns(self) -> None:
        await self.finish_releases()

    async def sweep(self) -> None:
        await self.watchdog.sweep()
