"""A database of its own on each engine, with all services of perdure."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.retention.support import World

from perdure.retention import session_sweep


@pytest.fixture
async def world(engine_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(session_sweep, "UNNAMED_SECONDS", 0.0)
    found = await World(engine_url).begin()
    yield found
    await found.close()
