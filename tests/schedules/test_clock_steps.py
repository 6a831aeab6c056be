"""Schedules follow the wall clock, and each of their times fires once, whichever way it is stepped."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.schedules.support import FIRINGS, ScheduleWorld
from tests.threads.support import open_storage

from perdure.kernel.storage.port import Tx
from perdure.testing.clock import ManualClock

HOUR = 3600.0
START = 1_800_000_000.0
"""A full hour."""


@pytest.fixture
async def world() -> AsyncIterator[ScheduleWorld]:
    clock = ManualClock(START + 60)
    storage = open_storage(":memory:", clock=clock)
    yield await ScheduleWorld(storage, clock).begin()
    await storage.close()


async def _fired(tx: Tx) -> list[int]:
    return [due_at for due_at, _, _ in await tx.all(FIRINGS)]


async def fired(world: ScheduleWorld) -> list[int]:
    """The hours that have fired, counted from the start."""
    return [round((due / 1e6 - START) / HOUR) for due in await world.storage.read(_fired, ns=1)]


async def pass_hours(world: ScheduleWorld, hours: float) -> None:
    """Let time pass, and look every ten minutes."""
    for _ in range(round(hours * 6)):
        await world.advance(600)
        await world.timer.fire_due()


async def test_after_a_step_back_no_time_fires_again(world: ScheduleWorld) -> None:
    made = await world.cron("0 * * * *")
    await pass_hours(world, 3)
    assert await fired(world) == [1, 2, 3]
    world.clock.step(-2 * HOUR)
    changed = await world.schedules.update(made.schedule_id, timezone="UTC")
    assert changed.next_at == START + 4 * HOUR
    await pass_hours(world, 2.5)
    assert await fired(world) == [1, 2, 3]
    await pass_hours(world, 2)
    assert await fired(world) == [1, 2, 3, 4, 5]


async def test_a_step_ahead_fires_what_was_missed_once(world: ScheduleWorld) -> None:
    await world.cron("0 * * * *")
    await pass_hours(world, 1)
    world.clock.step(3.5 * HOUR)
    await pass_hours(world, 1)
    assert await fired(world) == [1, 2, 5]


async def test_times_are_those_of_the_wall_clock(world: ScheduleWorld) -> None:
    world.clock.step(-5 * HOUR)
    made = await world.cron("0 * * * *")
    assert made.next_at == START - 4 * HOUR
    assert made.created_at == pytest.approx(START - 5 * HOUR + 60, abs=1)
    await pass_hours(world, 1)
    assert await fired(world) == [-4]
