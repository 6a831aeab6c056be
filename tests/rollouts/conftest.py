"""Rollouts on each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.rollouts.house import House
from tests.threads.support import open_storage

from perdure.testing.clock import ManualClock


@pytest.fixture
async def house(engine_url: str) -> AsyncIterator[House]:
    """Alone in its database: the watchdog would tell a kind's handlers of what other tests left behind."""
    clock = ManualClock()
    storage = open_storage(engine_url, clock=clock)
    yield House(storage, clock)
    await storage.close()
