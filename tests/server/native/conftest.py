"""A server with its surroundings on each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.server.native.support import House, housed
from tests.server.otlp_support import ENGINES, opened

from perdure import InMemoryLightningStore


@pytest_asyncio.fixture(params=ENGINES)
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with opened(request.param, request, tmp_path) as store, housed(store) as found:
        yield found


@pytest_asyncio.fixture
async def quick() -> AsyncIterator[House]:
    """Start one in memory, for tests that do not depend on the engine."""
    async with InMemoryLightningStore() as store, housed(store) as found:
        yield found
