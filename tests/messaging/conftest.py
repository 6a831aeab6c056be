"""Fixture: the messaging sessions of a namespace per test on each engine, with a manual clock on SQLite."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from tests.messaging.support import MessagingWorld
from tests.threads.support import open_storage

from perdure.testing.clock import ManualClock


@pytest.fixture
async def world(shared_engine_url: str) -> AsyncIterator[MessagingWorld]:
    clock = ManualClock()
    storage = open_storage(shared_engine_url, clock=clock)
    made = await MessagingWorld(storage, clock, f"test {uuid.uuid4().hex}").begin()
    yield made
    await made.check()
    await storage.close()
