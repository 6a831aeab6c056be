"""How the operations of a room run: merged, watched, on record, once a key, and in one namespace."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, TypeVar

from perdure.access.operations import ensure_namespace, once
from perdure.kernel.merge import Merger
from perdure.kernel.retry import Backoff, retry_until
from perdure.kernel.signals.port import carrier_of
from perdure.kernel.storage.port import Operation, Storage
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations import claim, report
from perdure.rollouts.operations.noted import NOTES, noted
from perdure.rollouts.operations.report import SweepDue, Swept, watched
from perdure.rollouts.operations.work import LinesNeeded

T = TypeVar("T")
Keys = Sequence[str] | None
KeyedBatch = Callable[..., Awaitable[Sequence[Any]]]
"""Runs a list of items, each under one of `keys`."""

POSTGRES_BATCHES = 3
"""How many batches of the same calls may run at once where more than one connection writes."""
CLOSE_SECONDS = 5.0
SWEEP_SECONDS = 5.0
"""How long one that died in the middle of a sweep keeps others from asking the database for its lock."""


class Runner:
    """Runs operations in a namespace. With an `actor` every write leaves an entry in the audit."""

    def __init__(
        self, storage: Storage, kinds: Kinds, *, namespace: str = "default", actor: str | None = None
    ) -> None:
        self.storage = storage
        self.namespace = namespace
        self.actor = actor
        self._kinds = kinds
        self._merger = Merger(POSTGRES_BATCHES if storage.engine == "postgres" else 1)
        self._number: int | None = None
        self._releases: set[asyncio.Task[None]] = set()
        self.lapses: Counter[str] = Counter()
        """How many attempts the watchdog of this process has ended, by the status it gave them."""

    async def _ns(self) -> int:
        if self._number is None:
            self._number = await self.storage.run(ensure_namespace, self.namespace)
        return self._number

    def _chain(self, operation: Operation[..., Any], args: tuple[Any, ...], keys: Keys) -> Any:
        """An operation with what goes around it: its entry in the audit, its items' idempotency keys."""
        call: tuple[Any, ...] = (operation,) if self.actor is None else (noted, self.actor, operation)
        return (*call, *args) if keys is None else (once, keys, NOTES[operation].action, call, *args)

    async def _write(self, operation: Operation[..., T], *args: Any, keys: Keys = None) -> T:
        chain = self._chain(operation, args, keys)
        result: T = await self.storage.run(*chain, ns=await self._ns())
        return result

    async def _write_watched(self, operation: Operation[..., T], *args: Any, keys: Keys = None) -> T:
        ns = await self._ns()
        chain = self._chain(operation, args, keys)
        result: T
        try:
            result = await self.storage.run(watched, *chain, ns=ns)
        except SweepDue:
            await self.sweep()
            result = await self.storage.run(*chain, ns=ns)
        return result

    async def _write_lined(self, operation: Operation[..., T], *args: Any, keys: Keys = None) -> T:
        """For operations whose last argument says whether to lock lines first; most rollouts have none."""
        try:
            return await self._write_watched(operation, *args, False, keys=keys)
        except LinesNeeded:
            return await self._write_watched(operation, *args, True, keys=keys)

    def _once(self, lane: Hashable, batch: KeyedBatch, item: Any, key: str) -> asyncio.Future[Any]:
        """Merge a call that has a key with others that have one."""

        async def keyed(calls: Sequence[tuple[str, Any]]) -> Sequence[Any]:
            return await batch([item for _, item in calls], keys=[key for key, _ in calls])

        return self._merger.call(("once", lane), keyed, (key, item))

    async def _read(self, operation: Operation[..., T], *args: Any) -> T:
        return await self.storage.read(operation, *args, ns=await self._ns())

    async def _read_watched(self, operation: Operation[..., T], *args: Any) -> T:
        ns = await self._ns()
        try:
            return await self.storage.read(watched, operation, *args, ns=ns)
        except SweepDue:
            await self.sweep()
            return await self.storage.read(operation, *args, ns=ns)

    def _return(self, give_back: Callable[[], Awaitable[None]]) -> None:
        """Give a claim back whose caller went away while it was made."""
        task = asyncio.get_running_loop().create_task(self._release(give_back))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, give_back: Callable[[], Awaitable[None]]) -> None:
        """Retry until it is done: no other process knows that nobody holds these claims."""
        await retry_until(give_back, what="releasing a claim", idempotent=True, backoff=Backoff(0.05, 5.0))

    async def _finish_returns(self) -> None:
        """Let what is being given back come to its end, if that takes no longer than it may."""
        if self._releases:
            _, left = await asyncio.wait(self._releases, timeout=CLOSE_SECONDS)
            for task in left:
                task.cancel()

    async def sweep(self) -> None:
        """Let the watchdog end what is overdue and make ready what is due, in every namespace."""
        await self._sweep(patient=True)

    async def sweep_alone(self) -> None:
        """The same, unless somebody else is at it: of many processes only one sweeps at a time."""
        carrier = carrier_of(self.storage.signals)
        if carrier is not None and not await carrier.try_sweep(SWEEP_SECONDS):
            return
        try:
            await self._sweep(patient=False)
        finally:
            if carrier is not None:
                await carrier.end_sweep()

    async def _sweep(self, *, patient: bool) -> None:
        for ns in await self.storage.read(report.overdue_namespaces):
            await self.storage.run(claim.promote_due, ns=ns)
            while (swept := await self._sweep_some(ns, patient)).looked:
                self.lapses.update(swept.statuses)
                if swept.looked < report.SWEEP_ROWS:
                    break

    async def _sweep_some(self, ns: int, patient: bool) -> Swept:
        try:
            return await self.storage.run(report.sweep, self._kinds, False, patient, ns=ns)
        except LinesNeeded:
            return await self.storage.run(report.sweep, self._kinds, True, patient, ns=ns)
