"""What the tests of schedules share: a world with schedules in it, in which their time comes on command."""

from __future__ import annotations

from typing import Any

from tests.support.kinds import KINDS
from tests.threads.support import POLICY, World

from perdure.kernel.clock import to_micros, to_seconds
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.schedules.conditions import Conditions
from perdure.schedules.job_target import JobTarget
from perdure.schedules.model import ScheduleTargets
from perdure.schedules.records import Firing, JobStatus, Schedule
from perdure.schedules.rollout_target import RolloutTarget
from perdure.schedules.run_target import RunTarget
from perdure.schedules.service import Schedules
from perdure.schedules.timer import ScheduleTimer
from perdure.testing.clock import ManualClock
from perdure.threads.records import Run

TARGETS = ScheduleTargets(RunTarget(KINDS, POLICY), RolloutTarget(KINDS), JobTarget())
YEARLY = "0 0 1 1 *"
"""Comes only when a test says so."""

AGE_SCHEDULES = statement(
    "UPDATE schedules SET created_at = created_at - :age, updated_at = updated_at - :age,"
    " next_at = next_at - :age, due_at = due_at - :age, end_at = end_at - :age,"
    " fired_at = fired_at - :age WHERE ns = :ns"
)
AGE_FIRINGS = statement(
    "UPDATE firings SET due_at = due_at - :age, fired_at = fired_at - :age, ended_at = ended_at - :age"
    " WHERE ns = :ns"
)
FIRINGS = statement("SELECT due_at, started_id, error FROM firings WHERE ns = :ns ORDER BY due_at")


async def _age(tx: Tx, seconds: float) -> None:
    await tx.execute(AGE_SCHEDULES, age=to_micros(seconds))
    await tx.execute(AGE_FIRINGS, age=to_micros(seconds))


async def _now(tx: Tx) -> float:
    return to_seconds(tx.now)


class ScheduleWorld(World):
    """Threads with schedules that start runs on them."""

    def __init__(self, storage: Storage, clock: ManualClock, namespace: str = "default") -> None:
        super().__init__(storage, clock, namespace=namespace)
        self.conditions = Conditions()
        self.timer = ScheduleTimer(storage, TARGETS, self.conditions)
        self.schedules = Schedules(storage, TARGETS, scheduler=self.timer, namespace=namespace)

    async def begin(self) -> ScheduleWorld:
        await super().begin()
        return self

    async def advance(self, seconds: float) -> None:
        if self.storage.engine == "postgres":
            await self.storage.run(_age, seconds, ns=await self.threads.ns())
        await super().advance(seconds)

    async def now(self) -> float:
        return await self.storage.read(_now)

    async def cron(self, expression: str = YEARLY, assistant: str = "echo", **options: Any) -> Schedule:
        return await self.schedules.create_for("run", expression, assistant_id=assistant, **options)

    async def come(self, schedule: Schedule, later: float = 1.0) -> None:
        """Let the time of a schedule come, and so many seconds more pass."""
        next_at = (await self.schedules.get(schedule.schedule_id)).next_at
        assert next_at is not None
        await self.advance(next_at - await self.now() + later)

    async def fire(self, schedule: Schedule) -> Schedule:
        """Let its time come, and look."""
        await self.come(schedule)
        await self.timer.fire_due()
        return await self.schedules.get(schedule.schedule_id)

    async def history(self, schedule: Schedule) -> list[Firing]:
        """Its firings, the newest first."""
        return (await self.schedules.firings(schedule.schedule_id)).items

    async def job(self, name: str) -> JobStatus:
        """What the status of the scheduler shows of a named schedule."""
        (found,) = [each for each in (await self.schedules.status()).jobs if each.job_name == name]
        return found

    async def runs(self, **options: Any) -> list[Run]:
        """All runs, the oldest first."""
        page = await self.threads.list_runs(limit=100, **options)
        return list(reversed(page.items))
