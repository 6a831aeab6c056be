"""Settlement of open firings: read the started work, and record its end."""

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
"""Number of open firings that a process follows. The others are settled by the next firing and by reads."""


class OpenFirings(NamedTuple):
    """Open firings of schedules: outcomes of ended work, and firings whose work continues."""

    outcomes: Outcomes
    going: Sequence[FiringRow]


class Settling:
    """Settle the open firings of a database."""

    def __init__(self, storage: Storage, targets: ScheduleTargets) -> None:
        self.storage = storage
        self.targets = targets

    async def look(self, ns: int, schedule_ids: Sequence[str]) -> OpenFirings:
        """Return the outcomes of the open firings of schedules."""
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
        """Record the ended firings of schedules; return those that are still open."""
        open_firings = await self.look(ns, schedule_ids)
        if open_firings.outcomes:
            await self.storage.run(settle.settle, open_firings.outcomes, ns=ns)
        return open_firings.going

    async def settle_namespace(self, ns: int) -> list[FiringRow]:
        """Settle every schedule of a namespace."""
        going: list[FiringRow] = []
        after = ""
        while ids := await self.storage.read(settle.running, after, ns=ns):
            going += await self.settle(ns, ids)
            after = ids[-1]
        return going


class Followers:
    """Settle firings as soon as a hint reports the end of their work."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling
        self._tasks: dict[asyncio.Task[None], int] = {}

    def follow(self, ns: int, firings: Iterable[FiringRow]) -> None:
        """Wait for the end of the work of these firings."""
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
            # Work that ended before the watch began sends no more hint.
            ended = frozenset(keys)
            left = dict(keys)
            while left:
                try:
                    ids = sorted({left[key].schedule_id for key in ended & left.keys()})
                    going = {firing.key for firing in await self._settling.settle(ns, ids)}
                except StorageError as error:
                    logger.warning("cannot settle firings, the next firing retries: %s", error)
                    return
                left = {key: firing for key, firing in left.items() if key not in ended or firing in going}
                if left:
                    ended = await watch.changed()

    async def stop(self) -> None:
        """Stop following all firings."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
