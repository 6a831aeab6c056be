"""The assistants of a database on each engine, with two agents known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.agents.support import OPENED

from perdure.access.tables import TABLES as ACCESS_TABLES
from perdure.agents.records import AgentSpec
from perdure.assistants.service import Assistants
from perdure.assistants.tables import TABLES
from perdure.kernel.storage.labels import TABLES as LABEL_TABLES
from perdure.kernel.storage.port import Storage
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.sqlite import SqliteStorage

ALL_TABLES = (*ACCESS_TABLES, *LABEL_TABLES, *TABLES)
AGENTS = (AgentSpec(name="research", description="Looks things up."), AgentSpec(name="write"))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def storage(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str
) -> AsyncIterator[Storage]:
    opened: Storage
    if request.param == "postgres":
        opened = PostgresStorage(postgres_url, ALL_TABLES)
    else:
        opened = SqliteStorage(":memory:" if request.param == "memory" else tmp_path / "a.db", ALL_TABLES)
    yield opened
    await opened.close()


@pytest.fixture
async def assistants(storage: Storage) -> Assistants:
    made = Assistants(storage)
    await made.register(AGENTS)
    return made


@pytest.fixture(autouse=True)
async def _close_threads() -> AsyncIterator[None]:
    yield
    while OPENED:
        await OPENED.pop().close()
