"""Threads on each engine, in a world whose rules are looked at when a test is done."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.threads.support import World, open_storage

from perdure.testing import servers
from perdure.testing.clock import ManualClock


@pytest.fixture(scope="session")
def databases() -> Iterator[dict[str, str]]:
    """A database on each server, in which each test has a namespace of its own."""
    made: dict[str, str] = {}
    yield made
    for server_url, url in made.items():
        servers.drop_database(server_url, url.rpartition("/")[2])


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_server_url: str, databases: dict[str, str]
) -> str:
    if request.param == "postgres":
        if postgres_server_url not in databases:
            name = f"test_{uuid.uuid4().hex}"
            servers.create_database(postgres_server_url, name)
            databases[postgres_server_url] = servers.with_database(postgres_server_url, name)
        return databases[postgres_server_url]
    return ":memory:" if request.param == "memory" else str(tmp_path / "threads.db")


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    clock = ManualClock()
    storage = open_storage(url, clock=clock)
    made = await World(storage, clock, namespace=f"test {uuid.uuid4().hex}").begin()
    yield made
    await made.check()
    await made.threads.close()
    await storage.close()
