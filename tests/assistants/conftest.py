"""The assistants of a database on each engine, with two agents known."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.kernel.support import open_database

from perdure.access.tables import TABLES as ACCESS_TABLES
from perdure.agents.records import AgentSpec
from perdure.assistants.service import Assistants
from perdure.assistants.tables import TABLES
from perdure.kernel.storage.labels import TABLES as LABEL_TABLES
from perdure.kernel.storage.port import Storage

ALL_TABLES = (*ACCESS_TABLES, *LABEL_TABLES, *TABLES)
AGENTS = (AgentSpec(name="research", description="Looks things up."), AgentSpec(name="write"))


@pytest.fixture
async def storage(engine_url: str) -> AsyncIterator[Storage]:
    opened = open_database(engine_url, ALL_TABLES)
    yield opened
    await opened.close()


@pytest.fixture
async def assistants(storage: Storage) -> Assistants:
    made = Assistants(storage)
    await made.register(AGENTS)
    return made
