"""Fixture: a namespace per test on each engine, with a manual clock on SQLite."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from tests.threads.support import open_storage
from tests.workflows.support import WorkflowWorld

from perdure.testing.clock import ManualClock


@pytest.fixture
async def world(shared_engine_url: str) -> AsyncIterator[WorkflowWorld]:
    clock = ManualClock()
    storage = open_storage(shared_engine_url, clock=clock)
    made = await WorkflowWorld(storage, clock, namespace=f"test {uuid.uuid4().hex}").begin()
    yield made
    await made.check()
    await storage.close()
