"""One server an engine for the whole zoo, and the client that drives it."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from tests.server.langgraph.run_support import serving_on
from tests.server.otlp_support import ENGINES

from perdure.testing.serving import ServerProcess

PROJECT = Path(__file__).parent / "project"


@pytest.fixture(scope="session", params=ENGINES)
def zoo(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shared_postgres_url: str,
    shared_redis_url: str,
) -> Iterator[ServerProcess]:
    """The server of the zoo, on SQLite and on PostgreSQL with Redis."""
    folder = tmp_path_factory.mktemp("zoo") / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with serving_on(request.param, folder, shared_postgres_url, shared_redis_url) as started:
        yield started


@pytest_asyncio.fixture
async def client(zoo: ServerProcess) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=zoo.url) as opened:
        yield opened


@pytest.fixture
def mark() -> str:
    """A name that no other test uses on the same server."""
    return uuid.uuid4().hex
