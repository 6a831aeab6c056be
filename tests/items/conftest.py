"""The items of a database on each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.access.tables import TABLES as ACCESS_TABLES
from perdure.items.service import Items
from perdure.items.tables import TABLES
from perdure.kernel.storage.port import Storage
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.sqlite import SqliteStorage

ALL_TABLES = (*ACCESS_TABLES, *TABLES)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    opened: Storage
    if request.param == "postgres":
        opened = PostgresStorage(request.getfixturevalue("postgres_url"), ALL_TABLES)
    else:
        opened = SqliteStorage(":memory:" if request.param == "memory" else tmp_path / "i.db", ALL_TABLES)
    yield opened
    await opened.close()


@pytest.fixture
def items(storage: Storage) -> Items:
    return Items(storage)
