"""A browser and a filled server for each file of browser tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser
from tests.support.browser import browsing
from tests.web.world import World, filled_server

module_fixture = pytest_asyncio.fixture(scope="module", loop_scope="module")


@module_fixture
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as started:
        yield started


@module_fixture
async def world() -> AsyncIterator[World]:
    async with filled_server() as filled:
        yield filled
