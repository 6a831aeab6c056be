"""The shipped contract suite through the client and a server on loopback."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.rollouts.engines import Engine, Engines

from perdure import LightningStore, LightningStoreClient
from perdure.runtime.app import build_app
from perdure.server.http.server import HttpServer, make_application
from perdure.server.lightning.routes import ROUTES
from perdure.testing.contract import *  # noqa: F403
from perdure.testing.contract import Harness


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Use SQLite, because the suite without a server covers PostgreSQL."""
    with closing(Engines(tmp_path_factory.mktemp("client"))) as engines:
        yield engines.get("sqlite")


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[LightningStoreClient]:
    """Open a client of one server; both work in any event loop."""
    server = HttpServer(make_application(build_app(engine.store), ROUTES))
    server.start()
    made = LightningStoreClient(server.url)
    yield made
    asyncio.run(made.close())
    server.stop()


@pytest.fixture
def store(client: LightningStoreClient) -> LightningStore:
    return client.in_namespace(f"test {uuid.uuid4().hex}")


@pytest.fixture
async def harness(engine: Engine) -> Harness:
    return await engine.harness()
