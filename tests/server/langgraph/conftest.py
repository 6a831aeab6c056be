"""A real server process for each engine, and the real clients that use it."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from tests.server.langgraph.project import project
from tests.server.otlp_support import ENGINES
from tests.support.python_process import PythonProcess

import perdure
from perdure.testing import servers
from perdure.testing.serving import ServerProcess

SOURCE = Path(perdure.__file__).parents[1]


def serving(folder: Path, database: str, *options: str, **environment: str) -> ServerProcess:
    """Build `perdure serve` in a project's folder, without starting it."""
    command = [sys.executable, "-m", "perdure.cli", "serve", "--database", database, *options]
    surroundings = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    return ServerProcess(command, folder=folder, environment=surroundings, popen=PythonProcess)


@pytest.fixture(scope="session", params=ENGINES)
def server(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shared_postgres_url: str,
    shared_redis_url: str,
) -> Iterator[ServerProcess]:
    """Start servers on SQLite and on PostgreSQL with Redis for all tests; each uses its own threads."""
    folder = project(tmp_path_factory.mktemp(f"langgraph-{request.param}"))
    if request.param == "sqlite":
        with serving(folder, f"sqlite:///{folder / 'perdure.db'}") as started:
            yield started
        return
    name = f"test_{uuid.uuid4().hex}"
    servers.create_database(shared_postgres_url, name)
    redis = {"PERDURE_REDIS_URL": shared_redis_url, "PERDURE_REDIS_KEY_PREFIX": f"test:{name}:"}
    try:
        with serving(folder, servers.with_database(shared_postgres_url, name), **redis) as started:
            yield started
    finally:
        servers.drop_database(shared_postgres_url, name)


@pytest_asyncio.fixture
async def client(server: ServerProcess) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=server.url) as opened:
        yield opened


@pytest.fixture
def sync_client(server: ServerProcess) -> Iterator[SyncLangGraphClient]:
    with get_sync_client(url=server.url) as opened:
        yield opened


@pytest.fixture
def mark() -> dict[str, str]:
    """Return metadata by which a test finds its own objects among those of other tests on the server."""
    return {"test": uuid.uuid4().hex}
