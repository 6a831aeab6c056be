"""A database of each engine with the tables of graphs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kernel.support import Database

from perdure.access.tables import TABLES as ACCESS_TABLES
from perdure.graphs.service import Graphs
from perdure.graphs.tables import TABLES
from perdure.kernel.storage.port import Storage


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> Database:
    urls = {"memory": ":memory:", "sqlite": str(tmp_path / "graphs.db"), "postgres": postgres_url}
    return Database(request.param, urls[request.param])


@pytest.fixture
async def storage(database: Database) -> AsyncIterator[Storage]:
    opened = database.open((*ACCESS_TABLES, *TABLES))
    yield opened
    await opened.close()


@pytest.fixture
def graphs(storage: Storage) -> Graphs:
    return Graphs(storage)
