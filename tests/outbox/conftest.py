"""A database of each engine with the tables of the outbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.outbox.support import open_storage

from perdure.kernel.storage.port import Storage


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> str:
    urls = {"memory": ":memory:", "sqlite": str(tmp_path / "outbox.db"), "postgres": postgres_url}
    return urls[request.param]


@pytest.fixture
async def storage(url: str) -> AsyncIterator[Storage]:
    opened = open_storage(url)
    yield opened
    await opened.close()
