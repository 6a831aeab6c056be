"""Fixture: a namespace per test on each engine, with a manual clock on SQLite."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from tests.approvals.support import ApprovalWorld
from tests.threads.support import open_storage

from perdure.testing.clock import ManualClock


@pytest.fixture
async def approvals(shared_engine_url: str) -> AsyncIterator[ApprovalWorld]:
    clock = ManualClock()
    storage = open_storage(shared_engine_url, clock=clock)
    yield await ApprovalWorld(storage, clock, f"test {uuid.uuid4().hex}").begin()
    await storage.close()
