"""Fixtures: threads on each engine. The stored rows are checked at the end of each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.threads.support import World, open_storage

from perdure.testing.clock import ManualClock


@pytest.fixture
async def world(shared_engine_url: str) -> AsyncIterator[World]:
    async with _opened(shared_engine_url) as made:
        yield made


@pytest.fixture
async def lone_world(engine_url: str) -> AsyncIterator[World]:
    """World with its own database. Watchdogs, purges and hints work across namespaces, so tests that share a
    database could find rows of other tests."""
    async with _opened(engine_url) as made:
        yield made


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[World]:
    clock = ManualClock()
    storage = open_storage(url, clock=clock)
    made = await World(storage, clock, namespace=f"test {uuid.uuid4().hex}").begin()
    yield made
    await made.check()
    await made.queue.close()
    await storage.close()
