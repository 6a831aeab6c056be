"""The watchdog, and the base class of services with operations that need the watchdog to run first."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Self

from perdure.kernel.retry import Backoff, retry_until
from perdure.kernel.signals.port import find_carrier
from perdure.kernel.storage.port import Storage
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations import claim, queries, report
from perdure.rollouts.operations.report import WatchdogSweep
from perdure.rollouts.operations.work import ENDED_CHANNEL, ended_key
from perdure.service.base import Service
from perdure.service.callers import Caller
from perdure.service.conditions import Unmet

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
SWEEP_SECONDS = 5.0
"""How long the sweep lock of a process that died keeps other processes from sweeping."""
POLL_SECONDS = 2.0
POLL_ROWS = 1000


class Watchdog:
    """Ends overdue attempts and makes delayed rollouts ready, in every namespace of a database."""

    def __init__(self, storage: Storage, kinds: Kinds) -> None:
        self.storage = storage
        self.kinds = kinds
        self.ended: Counter[str] = Counter()
        """Number of attempts that the watchdog of this process has ended, by their new status."""
        self._shortened = False

    def start(self, interval: float | None) -> None:
        """Sweep every `interval` seconds, and poll for ends where other processes write too."""
        if interval is not None:
            self.storage.timers.every(interval, self.sweep_alone)
        if self.storage.engine == "postgres":
            self.storage.timers.every(POLL_SECONDS, self.poll_ends)

    async def sweep(self) -> None:
        """End overdue attempts and make due rollouts ready."""
        await self._sweep(patient=True)

    async def sweep_alone(self) -> None:
        """Sweep, unless another process is sweeping."""
        carrier = find_carrier(self.storage.signals)
        if carrier is not None and not await carrier.try_sweep(SWEEP_SECONDS):
            return
        try:
            await self._sweep(patient=False)
        finally:
            if carrier is not None:
                await carrier.end_sweep()

    async def _sweep(self, *, patient: bool) -> None:
        if not self._shortened:
            await self._shorten()
        for ns in await self.storage.read(report.overdue_namespaces, self.kinds):
            await self.storage.run(claim.promote_due, ns=ns)
            while (swept := await self._sweep_some(ns, patient)).looked:
                self.ended.update(swept.statuses)
                if swept.looked < report.SWEEP_ROWS:
                    break

    async def _shorten(self) -> None:
        """Shorten deadlines that an earlier process stored with a faster clock. Runs once in a process."""
        if await self.storage.read(report.has_future_deadlines):
            count = await self.storage.run(report.shorten_deadlines)
            logger.warning("the clock was set back; %d deadlines were shortened", count)
        self._shortened = True

    async def _sweep_some(self, ns: int, patient: bool) -> WatchdogSweep:
        try:
            return await self.storage.run(report.sweep, self.kinds, patient, False, ns=ns)
        except Unmet:
            return await self.storage.run(report.sweep, self.kinds, patient, True, ns=ns)

    async def poll_ends(self) -> None:
        """Publish awaited ends again, because hints between processes may be lost."""
        wanted: dict[int, list[str]] = {}
        for key in self.storage.signals.watched(ENDED_CHANNEL):
            ns, _, rollout_id = key.partition("/")
            wanted.setdefault(int(ns), []).append(rollout_id)
        for number, ids in wanted.items():
            for start in range(0, len(ids), POLL_ROWS):
                part = ids[start : start + POLL_ROWS]
                ended = await self.storage.read(queries.ended_among, part, ns=number)
                self.storage.signals.publish(
                    [(ENDED_CHANNEL, ended_key(number, rollout_id)) for rollout_id in ended]
                )


class WatchedService(Service):
    """Service with a watchdog, for operations that require `NOT_OVERDUE` (see `operations.conditions`)."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.kinds = kinds
        self.watchdog = watchdog or Watchdog(storage, kinds)
        self._releases: set[asyncio.Task[None]] = set()

    @classmethod
    def of_same(cls, other: WatchedService) -> Self:
        """Create a service with the same namespace, caller and watchdog."""
        return cls(
            other.storage,
            other.kinds,
            namespace=other.namespace,
            caller=other.caller,
            watchdog=other.watchdog,
        )

    def release_later(self, release: Callable[[], Awaitable[None]]) -> None:
        """Release a claim in the background, because its caller was cancelled during the claim.

        It is retried until it succeeds: no other process knows that these claims have no holder.
        """
        work = retry_until(release, what="releasing a claim", idempotent=True, backoff=Backoff(0.05, 5.0))
        task = asyncio.get_running_loop().create_task(work)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def finish_releases(self) -> None:
        """Wait a few seconds for releases that are under way, then cancel the rest."""
        if self._releases:
            _, left = await asyncio.wait(self._releases, timeout=CLOSE_SECONDS)
            for task in left:
                task.cancel()
