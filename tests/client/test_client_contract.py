"""The shipped contract suite through the client and a server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.rollouts.test_contract import Engine, embedded

from perdure import LightningStore, LightningStoreClient
from perdure.runtime.app import App
from perdure.server.http.server import HttpServer, make_application
from perdure.server.lightning.routes import ROUTES
from perdure.testing.contract import *  # noqa: F403
from perdure.testing.contract import Harness


@pytest.fixture(params=("client-sqlite",))
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """On SQLite: that the store does the same on PostgreSQL is the suite's finding without a server."""
    async with (
        embedded("sqlite", tmp_path / "db") as served,
        HttpServer(make_application(App(served.store), ROUTES)) as server,
        LightningStoreClient(server.url) as client,
    ):
        yield Engine(client, served.harness)


@pytest.fixture
def store(engine: Engine) -> LightningStore:
    return engine.store


@pytest.fixture
def harness(engine: Engine) -> Harness:
    return engine.harness
