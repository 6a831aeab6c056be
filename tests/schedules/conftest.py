"""A world with schedules on each engine."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from tests.schedules.support import ScheduleWorld
from tests.threads.support import open_storage

from perdure.testing.clock import ManualClock


@pytest.fixture
async def world(shared_engine_url: str) -> AsyncIterator[ScheduleWorld]:
    clock = ManualClock()
    storage = open_storage(shared_engine_url, clock=clock)
    made = await ScheduleWorld(storage, clock, namespace=f"test {uuid.uuid4().hex}").begin()
    yield made
    if made.timer.is_running:
        await made.timer.stop()
    await made.check()
    await storage.close()
