"""Threads on each engine, in a world whose rules are looked at when a test is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.threads.support import World, open_storage

from perdure.testing.clock import ManualClock


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> str:
    urls = {"memory": ":memory:", "sqlite": str(tmp_path / "threads.db"), "postgres": postgres_url}
    return urls[request.param]


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    clock = ManualClock()
    storage = open_storage(url, clock=clock)
    made = await World(storage, clock).begin()
    yield made
    await made.check()
    await made.threads.close()
    await storage.close()
