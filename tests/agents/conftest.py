"""Closes what the runs of a test have opened."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.agents.support import OPENED


@pytest.fixture(autouse=True)
async def _close_threads() -> AsyncIterator[None]:
    yield
    while OPENED:
        await OPENED.pop().close()
