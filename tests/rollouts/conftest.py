"""Rollouts on each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.rollouts.house import House
from tests.threads.support import open_storage

from perdure.testing.clock import ManualClock


@pytest.fixture
async def house(engine_url: str) -> AsyncIterator[House]:
    """The rollouts of a separate database, because the watchdog would notify handlers of other tests'
    rollouts."""
    clock = ManualClock()
    storage = open_storage(engine_url, clock=clock)
    yield House(storage, clock)
    await storage.close()
