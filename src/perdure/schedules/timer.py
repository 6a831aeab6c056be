"""Scheduler of a process: fires the due schedules of a database."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from perdure.kernel.due_loop import POLL_SECONDS, DueLoop
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
        self.state = SCHEDULER.start["created"]
        """`idle`, `running` or `stopping`."""
        self._loop = DueLoop(
            storage.signals, CHANNEL, ANY, lambda: self.fire_due(), work="schedules", poll=poll
        )
        self._settling = Settling(storage, targets)
        self._followers = Followers(self._settling)

    async def start(self) -> None:
        """Start firing in the running event loop. AlreadyRunning if it was started before."""
        if not SCHEDULER.moves(self.state, "start"):
            raise AlreadyRunning()
        self.state = SCHEDULER.step(self.state, "start")
        self._loop.start(self._settle_all)

    async def stop(self) -> None:
        """Stop firing after the current firing. NotRunning if it was not started."""
        if not SCHEDULER.moves(self.state, "stop"):
            raise NotRunning()
        self.state = SCHEDULER.step(self.state, "stop")
        await self._loop.stop()
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
        if self._loop.is_running:
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

    async def _settle_all(self) -> None:
        """Settle the firings that ended while no process was running."""
        try:
            for ns in await self.storage.read(settle.running_namespaces):
                self._follow(ns, await self._settling.settle_namespace(ns))
        except StorageClosed:
            raise
        except Exception as error:  # noqa: BLE001 - the next firing of each schedule settles too
            logger.warning("cannot settle open firings: %s", error)
