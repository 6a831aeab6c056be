"""The items of a database on each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.kernel.support import open_database

from perdure.access.tables import TABLES as ACCESS_TABLES
from perdure.items.service import Items
from perdure.items.tables import TABLES
from perdure.kernel.storage.port import Storage

ALL_TABLES = (*ACCESS_TABLES, *TABLES)


@pytest.fixture
async def storage(engine_url: str) -> AsyncIterator[Storage]:
    opened = open_database(engine_url, ALL_TABLES)
    yield opened
    await opened.close()


@pytest.fixture
def items(storage: Storage) -> Items:
    return Items(storage)
