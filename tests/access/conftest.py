"""An open store on each engine, and the access service on its database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.access.support import AccessHelper, open_engine

from perdure.rollouts.store import DatabaseLightningStore


@pytest.fixture
async def store(engine_url: str) -> AsyncIterator[DatabaseLightningStore]:
    async with open_engine(engine_url) as opened:
        yield opened


@pytest.fixture
def access(store: DatabaseLightningStore) -> AccessHelper:
    return AccessHelper(store.storage)
