"""Threads on each engine, in a world whose rules are looked at when a test is done."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from tests.threads.support import World, open_storage

from perdure.testing.clock import ManualClock


@pytest.fixture
async def world(shared_engine_url: str) -> AsyncIterator[World]:
    clock = ManualClock()
    storage = open_storage(shared_engine_url, clock=clock)
    made = await World(storage, clock, namespace=f"test {uuid.uuid4().hex}").begin()
    yield made
    await made.check()
    await made.queue.close()
    await storage.close()
