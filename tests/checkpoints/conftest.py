"""Fixtures: a database of each engine with the tables of graph checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.kernel.support import Database

from perdure.access.tables import TABLES as ACCESS_TABLES
from perdure.checkpoints.service import StoredCheckpoints
from perdure.checkpoints.tables import TABLES
from perdure.kernel.storage.port import Storage
from perdure.streams.tables import TABLES as STREAM_TABLES


@pytest.fixture
def database(engine_url: str) -> Database:
    return Database("postgres" if engine_url.startswith("postgres") else "sqlite", engine_url)


@pytest.fixture
async def storage(database: Database) -> AsyncIterator[Storage]:
    opened = database.open((*ACCESS_TABLES, *STREAM_TABLES, *TABLES))
    yield opened
    await opened.close()


@pytest.fixture
def graphs(storage: Storage) -> StoredCheckpoints:
    return StoredCheckpoints(storage)
