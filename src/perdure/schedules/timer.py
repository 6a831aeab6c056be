"""Fires the schedules of a database when they are due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from perdure.kernel.errors import InvalidInput, PerdureError, StorageClosed, StorageError, error_text
from perdure.kernel.storage.port import Storage
from perdure.schedules import model, operations
from perdure.schedules.model import Prepared, ScheduleRow, Targets
from perdure.schedules.operations import ANY, CHANNEL, FIRE_ROWS

POLL_SECONDS = 5.0
SHORTEST_WAIT = 0.05
"""How soon to look again while another process fires what is due."""

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
        """Stop firing. A firing that has begun is finished."""
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
        due = await self.storage.read(operations.due, self.targets.names(), ns=ns)
        prepared = [Prepared(row, self._prepare(row)) for row in due]
        if not prepared:
            return 0
        try:
            return await self.storage.run(operations.fire, prepared, self.targets, ns=ns)
        except StorageError:
            raise
        except Exception:
            # One of them fails the others: fire each alone.
            logger.exception("schedules could not be fired together")
            return await self._fire_alone(ns, prepared)

    def _prepare(self, row: ScheduleRow) -> Any:
        """What the target needs to start a schedule, or the error that becomes its firing."""
        try:
            return self.targets[row.target].prepare(model.order_of(row, row.next_at or 0))
        except PerdureError as error:
            return error
        except Exception as error:  # stored with the schedule, which goes on
            logger.exception("schedule %s could not be prepared", row.id)
            return InvalidInput(error_text(error))

    async def _fire_alone(self, ns: int, prepared: Sequence[Prepared]) -> int:
        for each in prepared:
            try:
                await self.storage.run(operations.fire, [each], self.targets, ns=ns)
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 - stored with the schedule, which goes on
                await self.storage.run(operations.fail, each, error_text(error), ns=ns)
        return len(prepared)

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
