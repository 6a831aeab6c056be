"""Threads on each engine, in a world whose rules are looked at when a test is done."""

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
    """One in a database of its own: watchdogs, purges and hints reach beyond namespaces, so that what other
    tests have left may be found by this one."""
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
