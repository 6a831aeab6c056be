"""Fires the schedules of a database when they are due."""

from __future__ import annotations

import asyncio
import logging

from perdure.kernel.errors import StorageClosed, StorageError
from perdure.kernel.storage.port import Storage
from perdure.schedules import model, operations
from perdure.schedules.model import Targets
from perdure.schedules.operations import ANY, CHANNEL, FIRE_ROWS

POLL_SECONDS = 5.0
SHORTEST_WAIT = 0.05
"""What is due and yet not there is being fired by another process."""

logger = logging.getLogger(__name__)


class ScheduleTimer:
    """Fires the due schedules of every namespace, from `start` to `stop`.

    Any number of processes may fire from one database: a time that has come fires once.
    """

    def __init__(self, storage: Storage, targets: Targets, *, poll: float = POLL_SECONDS) -> None:
        self.storage = storage
        self.targets = targets
        self.poll = poll
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to fire what is due, in the running event loop; a second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_firing())

    async def stop(self) -> None:
        """Fire no more. A firing that has begun comes to its end."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def fire_due(self) -> float | None:
        """Fire what is due in every namespace; returns the seconds until something is due again."""
        names = self.targets.names()
        for ns in await self.storage.read(operations.due_namespaces, names):
            while await self._fire_some(ns) == FIRE_ROWS:
                pass
        return await self.storage.read(operations.until_next, names)

    async def _fire_some(self, ns: int) -> int:
        try:
            return await self.storage.run(operations.fire, self.targets, ns=ns)
        except StorageError:
            raise
        except Exception:
            # One of them fails the others: fire each alone.
            logger.exception("schedules could not be fired together")
            return await self._fire_alone(ns)

    async def _fire_alone(self, ns: int) -> int:
        found = await self.storage.read(operations.due, self.targets.names(), ns=ns)
        for schedule_id, due_at in found:
            try:
                await self.storage.run(operations.fire_one, schedule_id, due_at, self.targets, ns=ns)
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 - kept with the schedule, which goes on
                text = model.error_text(error)
                await self.storage.run(operations.fail_one, schedule_id, due_at, text, ns=ns)
        return len(found)

    async def _keep_firing(self) -> None:
        with self.storage.signals.watch(CHANNEL, [ANY]) as watch:
            try:
                while True:
                    await watch.changed(await self._fire_and_wait())
            except StorageClosed:
                logger.info("schedules no longer fire: the storage is closed")

    async def _fire_and_wait(self) -> float:
        """Fire what is due; returns the seconds until the next look."""
        try:
            wait = await self.fire_due()
        except StorageClosed:
            raise
        except Exception as error:  # noqa: BLE001 - nobody else would fire in its place
            logger.warning("schedules cannot be fired, trying again in %s s: %s", self.poll, error)
            return self.poll
        return self.poll if wait is None else max(min(wait, self.poll), SHORTEST_WAIT)
