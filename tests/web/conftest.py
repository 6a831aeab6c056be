"""One browser and one filled server for all browser tests of a process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser
from tests.support.browser import browsing
from tests.web.world import World, filled_server

package_fixture = pytest_asyncio.fixture(scope="package", loop_scope="package")


@package_fixture
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as started:
        yield started


@package_fixture
async def world() -> AsyncIterator[World]:
    async with filled_server() as filled:
        yield filled
