"""A database of each engine with the tables of the outbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.outbox.support import open_storage

from perdure.kernel.storage.port import Storage


@pytest.fixture
def url(engine_url: str) -> str:
    return engine_url


@pytest.fixture
async def storage(engine_url: str) -> AsyncIterator[Storage]:
    opened = open_storage(engine_url)
    yield opened
    await opened.close()
