"""Settles open firings: reads what they started, and writes down what has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure.kernel.errors import StorageError
from perdure.kernel.storage.port import Storage
from perdure.schedules.model import FiringOutcome, ScheduleTargets
from perdure.schedules.operations import settle
from perdure.schedules.operations.settle import Outcomes
from perdure.schedules.rows import FiringKey, FiringRow

logger = logging.getLogger(__name__)

MAX_FOLLOWED = 10_000
"""How many open firings a process follows. The others are settled by the next firing and by reads."""


class OpenFirings(NamedTuple):
    """The open firings of some schedules: how those ended whose work has ended, and which still go on."""

    outcomes: Outcomes
    going: Sequence[FiringRow]


class Settling:
    """Settles the open firings of a database."""

    def __init__(self, storage: Storage, targets: ScheduleTargets) -> None:
        self.storage = storage
        self.targets = targets

    async def look(self, ns: int, schedule_ids: Sequence[str]) -> OpenFirings:
        """What has become of the open firings of schedules."""
        outcomes: dict[FiringKey, FiringOutcome] = {}
        going: list[FiringRow] = []
        if schedule_ids:
            for firing, started in await self.storage.read(
                settle.read_open, schedule_ids, self.targets, ns=ns
            ):
                target = self.targets[firing.target or ""]
                outcome = FiringOutcome(None) if started is None else target.outcome(started)
                if outcome is None:
                    going.append(firing)
                else:
                    outcomes[firing.key] = outcome
        return OpenFirings(outcomes, going)

    async def settle(self, ns: int, schedule_ids: Sequence[str]) -> Sequence[FiringRow]:
        """Write down what has ended of the open firings of schedules; gives those that still go on."""
        found = await self.look(ns, schedule_ids)
        if found.outcomes:
            await self.storage.run(settle.settle, found.outcomes, ns=ns)
        return found.going

    async def settle_namespace(self, ns: int) -> list[FiringRow]:
        """The same for every schedule of a namespace."""
        going: list[FiringRow] = []
        after = ""
        while ids := await self.storage.read(settle.running, after, ns=ns):
            going += await self.settle(ns, ids)
            after = ids[-1]
        return going


class Followers:
    """Settles firings as soon as hints say that what they started has ended."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling
        self._tasks: dict[asyncio.Task[None], int] = {}

    def follow(self, ns: int, firings: Iterable[FiringRow]) -> None:
        """Wait for the ends of what these firings started."""
        by_channel: dict[str, dict[str, FiringKey]] = {}
        for firing in firings:
            target = self._settling.targets[firing.target or ""]
            channel, key = target.ended_key(ns, firing.started_id or "")
            by_channel.setdefault(channel, {})[key] = firing.key
        for channel, keys in by_channel.items():
            if sum(self._tasks.values()) + len(keys) <= MAX_FOLLOWED:
                task = asyncio.get_running_loop().create_task(self._follow(ns, channel, keys))
                self._tasks[task] = len(keys)
                task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    async def _follow(self, ns: int, channel: str, keys: dict[str, FiringKey]) -> None:
        with self._settling.storage.signals.watch(channel, keys) as watch:
            # The hint of what ended before it was watched is gone.
            ended = frozenset(keys)
            left = dict(keys)
            while left:
                try:
                    ids = sorted({left[key].schedule_id for key in ended & left.keys()})
                    going = {firing.key for firing in await self._settling.settle(ns, ids)}
                except StorageError as error:
                    logger.warning("firings could not be settled, which the next firing does: %s", error)
                    return
                left = {key: each for key, each in left.items() if key not in ended or each in going}
                if left:
                    ended = await watch.changed()

    async def stop(self) -> None:
        """Follow nothing any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
