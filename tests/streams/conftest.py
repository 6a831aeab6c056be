"""A database of each engine with the tables of streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.kernel.support import Database
from tests.streams.support import Source

from perdure.kernel.storage.port import Storage
from perdure.streams.service import Streams
from perdure.streams.tables import TABLES


@pytest.fixture
def database(engine_url: str) -> Database:
    return Database("postgres" if engine_url.startswith("postgres") else "sqlite", engine_url)


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
