"""Shared by the tests of the client: a connection to a server through a proxy, and a proxy by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.client.flaky import FlakyServer
from tests.client.line import Line, open_line


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    async with open_line(tmp_path / "db") as line:
        yield line


@pytest.fixture
async def proxy() -> AsyncIterator[FlakyServer]:
    """Start a proxy without a server, which answers with prepared responses."""
    async with FlakyServer() as proxy:
        yield proxy
