"""Rollouts on each engine, in a namespace of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.rollouts.house import House
from tests.threads.support import open_storage

from perdure.testing.clock import ManualClock


@pytest.fixture
async def house(shared_engine_url: str) -> AsyncIterator[House]:
    clock = ManualClock()
    storage = open_storage(shared_engine_url, clock=clock)
    yield House(storage, clock)
    await storage.close()
