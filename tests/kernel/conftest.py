"""The databases that the kernel's tests run on, one test body for all."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.kernel.support import Database, Gate

from perdure.kernel.storage.port import Storage
from perdure.testing import servers

KINDS = ("memory", "sqlite", "postgres")


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path, postgres_server_url: str) -> Iterator[Database]:
    if request.param != "postgres":
        yield Database(
            request.param, ":memory:" if request.param == "memory" else str(tmp_path / "things.db")
        )
        return
    name = f"kernel_{uuid.uuid4().hex}"
    servers.create_database(postgres_server_url, name)
    yield Database("postgres", servers.with_database(postgres_server_url, name))
    servers.drop_database(postgres_server_url, name)


@pytest.fixture
async def storage(database: Database) -> AsyncIterator[Storage]:
    opened = database.open()
    yield opened
    await opened.close()


@pytest.fixture
async def gate(database: Database) -> AsyncIterator[Gate]:
    async with Gate.closed(database) as made:
        yield made
