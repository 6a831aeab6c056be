"""Three processes that fire schedules on PostgreSQL are killed at random: none is missed, none doubled."""

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tests.chaos.scenario import Run
from tests.support.python_process import PythonProcess

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.runtime.stores import open_store
from perdure.schedules.job_target import JobTarget
from perdure.schedules.model import ScheduleTargets
from perdure.schedules.service import Schedules
from perdure.schedules.timer import ScheduleTimer
from perdure.testing.servers import PostgresServer

PROCESSES = 3
SCHEDULES = 50
"""How many schedules come every second."""
BETWEEN = 0.4
"""Longest pause between two kills, in seconds."""
SECONDS = 900.0
"""How long all of it may take: on a busy machine much is still due after the last kill."""
ROOT = Path(__file__).resolve().parents[2]
TARGETS = ScheduleTargets(JobTarget())
PAYLOADS = statement("SELECT payload FROM jobs WHERE ns = :ns")
COUNT = statement("SELECT count(*) FROM jobs WHERE ns = :ns", row=int)


class _Origin(msgspec.Struct):
    name: str
    due_at: float


class _Payload(msgspec.Struct):
    schedule: _Origin


def kill_schedulers_on_postgres(run: Run) -> None:
    with PostgresServer() as server:
        kill_schedulers(run, server.create_database("schedules"))


def kill_schedulers(run: Run, database: str, schedules: int = SCHEDULES) -> None:
    """Let schedules of every second fire `run.size` times while the processes that fire them are killed."""
    asyncio.run(_Kills(run, database, schedules).perform())


class _Kills:
    def __init__(self, run: Run, database: str, schedules: int) -> None:
        self._run = run
        self._database = database
        self._count = schedules
        self._random = random.Random(run.seed)
        self._processes: list[PythonProcess] = []

    async def perform(self) -> None:
        store = open_store(self._database)
        try:
            async with asyncio.timeout(SECONDS):
                schedules = Schedules(store.storage, TARGETS)
                for number in range(self._count):
                    await schedules.create_for(
                        "job", "* * * * * *", name=f"s{number}", misfire="all", payload={"job": "nothing"}
                    )
                await self._kill_while_they_fire(schedules)
        except TimeoutError:
            seen = f"{self._run.done} of {self._run.size} firings were seen"
            self._run.found("at the end", [f"not done within {SECONDS:g} s; {seen}"])
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
            await store.close()

    async def _kill_while_they_fire(self, schedules: Schedules) -> None:
        ns = await schedules.ns()
        self._processes = [self._start() for _ in range(PROCESSES)]
        while self._run.done < self._run.size:
            await asyncio.sleep(self._random.uniform(0, BETWEEN))
            number = self._random.randrange(PROCESSES)
            self._processes[number].kill()
            self._processes[number].wait()
            self._run.facts["kills"] += 1
            self._processes[number] = self._start()
            fired = await schedules.storage.read(_count, ns=ns)
            self._run.advance(f"{self._run.facts['kills']} kills", fired - self._run.done)
        for process in self._processes:
            process.kill()
            process.wait()
        # What was due when the last of them was killed.
        await ScheduleTimer(schedules.storage, TARGETS).fire_due()
        await self._check(schedules, await schedules.storage.read(_payloads, ns=ns))

    def _start(self) -> PythonProcess:
        with (self._run.folder / "children.log").open("ab") as log:
            return PythonProcess(
                (sys.executable, "-m", "tests.chaos.scheduler_kills", self._database),
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    async def _check(self, schedules: Schedules, payloads: Sequence[str]) -> None:
        fired: dict[str, list[int]] = {}
        for payload in payloads:
            origin = msgspec.json.decode(payload, type=_Payload).schedule
            fired.setdefault(origin.name, []).append(round(origin.due_at))
        self._run.facts["firings"] = len(payloads)
        for number in range(self._count):
            name = f"s{number}"
            times = sorted(fired.get(name, []))
            status = await schedules.get(name)
            doubled = len(times) - len(set(times))
            missed = (times[-1] - times[0] + 1 - len(set(times))) if times else 1
            wrong = [f"{doubled} times were doubled"] if doubled else []
            wrong += [f"{missed} times were missed"] if missed else []
            if status.fired != len(times):
                wrong.append(f"it counts {status.fired} firings, and there are {len(times)} jobs")
            self._run.found(name, wrong)


async def _payloads(tx: Tx) -> list[str]:
    return [str(next(iter(row))) for row in await tx.all(PAYLOADS)]


async def _count(tx: Tx) -> int:
    return await tx.one(COUNT) or 0


async def _fire(database: str) -> None:
    """Fire until the process is killed."""
    store = open_store(database)
    await ScheduleTimer(store.storage, TARGETS, poll=0.5).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_fire(sys.argv[1]))
