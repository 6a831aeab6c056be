"""An open store on each engine, and the access room over its database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.access.support import Access, open_engine

from perdure.rollouts.store import DatabaseLightningStore


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str
) -> AsyncIterator[DatabaseLightningStore]:
    url = {"memory": "memory:", "sqlite": str(tmp_path / "perdure.db"), "postgres": postgres_url}
    async with open_engine(url[request.param]) as opened:
        yield opened


@pytest.fixture
def access(store: DatabaseLightningStore) -> Access:
    return Access(store.storage)
