"""A database of its own on each engine, with all services of perdure."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.retention.support import World


@pytest.fixture
async def world(engine_url: str) -> AsyncIterator[World]:
    found = await World(engine_url).begin()
    yield found
    await found.close()
