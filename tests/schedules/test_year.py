"""A year of firings in simulated time, over every change of the clocks: each time once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from tests.threads.support import INLINE, open_storage

from perdure.kernel.errors import PerdureError
from perdure.kernel.storage.port import Tx
from perdure.schedules.model import SUCCESS, FiringOutcome, FiringRequest, ScheduleTargets
from perdure.schedules.service import Schedules
from perdure.schedules.timer import ScheduleTimer
from perdure.service.namespaces import ensure_namespace
from perdure.testing.clock import ManualClock

START = datetime(2026, 1, 1, tzinfo=UTC)
HALF_PAST_TWO = "30 2 * * *"
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC")


class Noted:
    """A target whose starts are noted, and have ended at once."""

    name = "noted"

    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []

    def prepare(self, order: FiringRequest) -> FiringRequest:
        return order

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        return None

    async def start(self, tx: Tx, prepared: Sequence[FiringRequest]) -> list[str | PerdureError]:
        self.started += [(order.name or "", order.due_at) for order in prepared]
        return [f"{order.name}/{order.due_at}" for order in prepared]

    async def find(self, tx: Tx, started: Sequence[str]) -> dict[str, Any]:
        return {name: name for name in started}

    def outcome(self, found: Any) -> FiringOutcome | None:
        return FiringOutcome(SUCCESS, 1)

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        return "noted", started_id


def half_past_two(zone: str) -> list[int]:
    """The times of a year at which the clocks of a zone show half past two, or would have if they did."""
    found = []
    day = date(2025, 12, 31)
    while day <= date(2027, 1, 1):
        moment = datetime(day.year, day.month, day.day, 2, 30, tzinfo=ZoneInfo(zone))
        shown = moment.astimezone(UTC).astimezone(ZoneInfo(zone))
        if shown.replace(tzinfo=None) != moment.replace(tzinfo=None):
            # The clocks skip it: it comes right after the gap, which is at a full or a half hour.
            before = moment.astimezone(UTC) - timedelta(hours=2)
            while (before + timedelta(minutes=30)).astimezone(
                ZoneInfo(zone)
            ).utcoffset() == before.astimezone(ZoneInfo(zone)).utcoffset():
                before += timedelta(minutes=30)
            moment = before + timedelta(minutes=30)
        found.append(moment.astimezone(UTC))
        day += timedelta(days=1)
    return [round(each.timestamp()) for each in found if START < each < START.replace(year=2027)]


def every_hour(zone: str, minute: int) -> list[int]:
    """The times of a year at which the clocks of a zone show a minute of any hour.

    Some clocks are half an hour off, and Lord Howe's are changed by half an hour.
    """
    local, found = ZoneInfo(zone), []
    moment = START + timedelta(minutes=minute % 30)
    while moment < START.replace(year=2027):
        if moment > START and moment.astimezone(local).minute == minute:
            found.append(round(moment.timestamp()))
        moment += timedelta(minutes=30)
    return found


async def simulate(hourly: int) -> int:
    """A year with so many hourly schedules; gives how many firings there were."""
    clock = ManualClock(START.timestamp())
    storage = open_storage(INLINE, clock=clock)
    await storage.run(ensure_namespace, "default")
    target = Noted()
    targets = ScheduleTargets(target)
    schedules, timer = Schedules(storage, targets), ScheduleTimer(storage, targets)
    for zone in ZONES:
        name = zone.replace("/", "-")
        await schedules.create_for(target.name, HALF_PAST_TWO, name=name, timezone=zone, overlap="skip")
    for number in range(hourly):
        zone = ZONES[number % len(ZONES)]
        await schedules.create_for(
            target.name, f"{number} * * * *", name=f"hourly-{number}", timezone=zone, overlap="skip"
        )
    end = START.replace(year=2027).timestamp()
    while clock.wall(clock.now()) / 1e6 < end:
        wait = await timer.fire_due()
        assert wait is not None
        clock.advance(max(wait, 0.0) + 0.001)
    fired: dict[str, list[int]] = {}
    for name, due_at in target.started:
        fired.setdefault(name, []).append(due_at // 1_000_000)
    for zone in ZONES:
        assert fired[zone.replace("/", "-")] == half_past_two(zone), zone
    for number in range(hourly):
        zone = ZONES[number % len(ZONES)]
        assert fired[f"hourly-{number}"] == every_hour(zone, number), (zone, number)
    status = await schedules.status()
    assert all(each.error_count == 0 for each in status.jobs)
    await storage.close()
    return len(target.started)


def test_a_year_of_firings() -> None:
    assert asyncio.run(simulate(hourly=1)) == 4 * 365 + 8759
