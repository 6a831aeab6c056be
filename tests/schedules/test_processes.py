"""Firing from several processes, and from one that is killed: each time that has come is used once."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kernel.support import PATIENCE, until_true
from tests.schedules.support import FIRINGS, ScheduleWorld
from tests.threads.support import open_storage

from perdure.kernel.clock import MICROS
from perdure.testing.clock import ManualClock

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def firing(url: str, manner: str = "well") -> AsyncIterator[Process]:
    """A process that fires until its line is closed, or until it is killed."""
    command = [sys.executable, "-m", "tests.schedules.child", url, manner]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"firing\n"
        yield process
        process.stdin.close()
        await asyncio.wait_for(process.wait(), PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[ScheduleWorld]:
    storage = open_storage(url)
    world = await ScheduleWorld(storage, ManualClock()).begin()
    yield world
    await world.check()
    await storage.close()


async def check_firings(world: ScheduleWorld, *schedule_ids: str) -> None:
    """As many runs as firings, each of one run, and of each schedule a whole second after the other."""
    runs = [run.run_id for run in await world.runs()]
    rows = await world.rows(FIRINGS)
    assert sorted(row[1] for row in rows) == sorted(runs)
    assert all(row[0] % MICROS == 0 for row in rows)
    for schedule_id in schedule_ids:
        times = [each.due_at for each in await world.schedules.firings(schedule_id)]
        assert len(set(times)) == len(times)


async def test_two_processes_fire_each_time_once(database_url: str) -> None:
    async with opened(database_url) as world:
        made = [(await world.cron("* * * * * *")).schedule_id for _ in range(3)]

        async def enough() -> bool:
            found = [await world.schedules.get(each) for each in made]
            return all(each.fired >= 4 for each in found)

        async with firing(database_url) as one, firing(database_url) as other:
            await until_true(enough)
        assert (one.returncode, other.returncode) == (0, 0)
        await check_firings(world, *made)


async def test_a_process_killed_in_the_middle_of_a_firing_loses_and_doubles_nothing(engine_url: str) -> None:
    url = engine_url
    async with opened(url) as world:
        made = await world.cron("* * * * * *")
    async with firing(url, "doomed") as process:
        assert await asyncio.wait_for(process.wait(), PATIENCE) == -signal.SIGKILL
    async with opened(url) as world:
        before = await world.schedules.get(made.schedule_id)
        assert (before.fired, before.next_at) == (0, made.next_at)
        assert await world.runs() == []
        await world.timer.fire_due()
        after = await world.schedules.get(made.schedule_id)
        assert after.fired == 1
        (times,) = await world.schedules.firings(made.schedule_id)
        assert times.due_at == made.next_at
        await check_firings(world, made.schedule_id)
