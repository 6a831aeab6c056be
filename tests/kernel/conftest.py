"""Databases for the kernel's tests: each test runs on all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kernel.support import Database, Gate

from perdure.kernel.storage.port import Storage

KINDS = ("memory", "sqlite", "postgres")


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    places = {"memory": ":memory:", "sqlite": str(tmp_path / "things.db")}
    return Database(request.param, places.get(request.param) or request.getfixturevalue("postgres_url"))


@pytest.fixture
async def storage(database: Database) -> AsyncIterator[Storage]:
    opened = database.open()
    yield opened
    await opened.close()


@pytest.fixture
async def gate(database: Database) -> AsyncIterator[Gate]:
    async with Gate.closed(database) as gate:
        yield gate
