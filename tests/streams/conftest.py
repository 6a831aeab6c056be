"""A database of each engine with the tables of streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kernel.support import Database
from tests.streams.support import Source

from perdure.kernel.storage.port import Storage
from perdure.streams.service import Streams
from perdure.streams.tables import TABLES


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> Database:
    urls = {"memory": ":memory:", "sqlite": str(tmp_path / "streams.db"), "postgres": postgres_url}
    return Database(request.param, urls[request.param])


@pytest.fixture
async def storage(database: Database) -> AsyncIterator[Storage]:
    opened = database.open(TABLES)
    yield opened
    await opened.close()


@pytest.fixture
def streams(storage: Storage) -> Streams:
    return Streams(storage)


@pytest.fixture
def source(streams: Streams) -> Source:
    return Source(streams)
