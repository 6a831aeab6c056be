"""Scheduler of a process: fires the due schedules of a database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from perdure.kernel.errors import (
    AlreadyRunning,
    InvalidInput,
    NotRunning,
    PerdureError,
    StorageClosed,
    StorageError,
    error_text,
)
from perdure.kernel.storage.port import Storage
from perdure.schedules.conditions import Conditions
from perdure.schedules.model import IDLE, SCHEDULER, FiringRequest, ScheduleTargets
from perdure.schedules.operations import fire, settle
from perdure.schedules.operations.edit import ANY, CHANNEL
from perdure.schedules.operations.fire import FIRE_ROWS, Fired
from perdure.schedules.rows import FiringRow, Prepared, ScheduleRow, row_to_firing_request
from perdure.schedules.settling import Followers, Settling

POLL_SECONDS = 5.0
SHORTEST_WAIT = 0.05
"""Wait before the next look while another process fires the due schedules."""

logger = logging.getLogger(__name__)


class ScheduleTimer:
    """Fire the due schedules of every namespace, from `start` to `stop`.

    Several processes may fire from one database; each due time fires once.
    """

    def __init__(
        self,
        storage: Storage,
        targets: ScheduleTargets,
        conditions: Conditions | None = None,
        *,
        poll: float = POLL_SECONDS,
    ) -> None:
        self.storage = storage
        self.targets = targets
        self.conditions = conditions or Conditions()
        self.poll = poll
        self.state = SCHEDULER.start["created"]
        """`idle`, `running` or `stopping`."""
        self._task: asyncio.Task[None] | None = None
        self._settling = Settling(storage, targets)
        self._followers = Followers(self._settling)

    async def start(self) -> None:
        """Start firing in the running event loop. AlreadyRunning if it was started before."""
        if not SCHEDULER.moves(self.state, "start"):
            raise AlreadyRunning()
        self.state = SCHEDULER.step(self.state, "start")
        self._task = asyncio.get_running_loop().create_task(self._keep_firing())

    async def stop(self) -> None:
        """Stop firing after the current firing. NotRunning if it was not started."""
        if not SCHEDULER.moves(self.state, "stop"):
            raise NotRunning()
        self.state = SCHEDULER.step(self.state, "stop")
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._followers.stop()
        self.state = SCHEDULER.step(self.state, "firings have ended")

    @property
    def is_running(self) -> bool:
        return self.state != IDLE

    async def fire_due(self) -> float | None:
        """Fire all due schedules; return the seconds until the next one is due."""
        names = self.targets.names()
        for ns in await self.storage.read(fire.due_namespaces, names):
            while await self._fire_batch(ns):
                pass
        return await self.storage.read(fire.until_next, names)

    async def _fire_batch(self, ns: int) -> bool:
        """Fire a batch of due schedules; return whether more are certainly due."""
        rows = await self.storage.read(fire.due, self.targets.names(), ns=ns)
        if not rows:
            return False
        outcomes = (await self._settling.look(ns, [row.id for row in rows if row.running])).outcomes
        prepared = [await self._prepare_with_condition(row) for row in rows]
        try:
            fired: Fired = await self.storage.run(fire.fire, prepared, self.targets, outcomes, ns=ns)
        except StorageError:
            raise
        except Exception:
            # One schedule fails the whole batch, so each is fired in a transaction of its own.
            logger.exception("cannot fire a batch of schedules, firing each by itself")
            await self._fire_alone(ns, prepared)
            return len(rows) == FIRE_ROWS
        self._follow(ns, fired.started)
        return fired.more or fired.looked == FIRE_ROWS

    def _follow(self, ns: int, firings: Sequence[FiringRow]) -> None:
        if self._task is not None:
            self._followers.follow(ns, firings)

    async def _prepare_with_condition(self, row: ScheduleRow) -> Prepared:
        order = row_to_firing_request(row, row.instant or 0)
        return Prepared(row, self._prepare(row, order), await self.conditions.holds(row.unless, order))

    def _prepare(self, row: ScheduleRow, order: FiringRequest) -> Any:
        """Return the target's prepared input, or the error that is stored as the firing."""
        try:
            return self.targets[row.target].prepare(order)
        except PerdureError as error:
            return error
        except Exception as error:  # stored with the schedule, which continues
            logger.exception("cannot prepare schedule %s", row.id)
            return InvalidInput(error_text(error))

    async def _fire_alone(self, ns: int, prepared: Sequence[Prepared]) -> None:
        for firing in prepared:
            try:
                fired = await self.storage.run(fire.fire, [firing], self.targets, {}, ns=ns)
                self._follow(ns, fired.started)
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 - stored with the schedule, which goes on
                await self.storage.run(fire.fail, firing, error_text(error), ns=ns)

    async def _keep_firing(self) -> None:
        with self.storage.signals.watch(CHANNEL, [ANY]) as watch:
            try:
                await self._settle_all()
                while True:
                    await watch.changed(await self._fire_and_wait())
            except StorageClosed:
                logger.info("schedules no longer fire: the storage is closed")

    async def _settle_all(self) -> None:
        """Settle the firings that ended while no process was running."""
        try:
            for ns in await self.storage.read(settle.running_namespaces):
                self._follow(ns, await self._settling.settle_namespace(ns))
        except StorageClosed:
            raise
        except Exception as error:  # noqa: BLE001 - the next firing of each schedule settles too
            logger.warning("cannot settle open firings: %s", error)

    async def _fire_and_wait(self) -> float:
        """Fire all due schedules; return the seconds until the next look."""
        try:
            wait = await self.fire_due()
        except StorageClosed:
            raise
        except Exception as error:  # noqa: BLE001 - this task must continue to fire
            logger.warning("cannot fire schedules, retrying in %s s: %s", self.poll, error)
            return self.poll
        return self.poll if wait is None else min(wait or SHORTEST_WAIT, self.poll)
