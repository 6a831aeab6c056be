"""The shipped contract suite on every engine; the one in memory stands behind the threaded wrapper."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest

from perdure import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreThreaded,
    PostgresLightningStore,
    SqliteLightningStore,
)
from perdure.kernel.clock import MICROS
from perdure.testing import servers
from perdure.testing.clock import ManualClock
from perdure.testing.contract import *  # noqa: F403
from perdure.testing.contract import Harness

ENGINES = ("threaded-memory", "sqlite", "postgres")
WATCHDOG_INTERVAL = 0.25

EMPTY = """
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'perdure_meta' LOOP
    EXECUTE format('DELETE FROM %I', name);
  END LOOP;
END $$
"""
AGE = (
    "UPDATE rollouts SET start_time = start_time - $1, end_time = end_time - $1, due_at = due_at - $1,"
    " position = position - $1, ready = ready - $1",
    "UPDATE attempts SET start_time = start_time - $1, end_time = end_time - $1, check_at = check_at - $1,"
    " last_heartbeat_time = last_heartbeat_time - $1, born = born - $1",
    "UPDATE spans SET born = born - $1",
)


class Engine(NamedTuple):
    """An open store and the hand on its clock."""

    store: LightningStore
    harness: Harness


class ClockHarness:
    """For stores on a clock of ours: moves it."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    async def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)


class AgingHarness:
    """For stores on the server's clock: makes everything that is stored older."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def advance(self, seconds: float) -> None:
        async with self._connection.transaction():
            for statement in AGE:
                await self._connection.execute(statement, round(seconds * MICROS))


@pytest.fixture(scope="session")
def databases() -> Iterator[dict[str, str]]:
    """One database a server, made by the first test that needs it."""
    made: dict[str, str] = {}
    yield made
    for server_url, name in made.items():
        servers.drop_database(server_url, name)


@pytest.fixture
def database_url(postgres_server_url: str, databases: dict[str, str]) -> str:
    if postgres_server_url not in databases:
        databases[postgres_server_url] = f"contract_{uuid.uuid4().hex}"
        servers.create_database(postgres_server_url, databases[postgres_server_url])
    return servers.with_database(postgres_server_url, databases[postgres_server_url])


@asynccontextmanager
async def embedded(kind: str, path: Path) -> AsyncIterator[Engine]:
    clock = ManualClock()
    store: LightningStore
    if kind.endswith("memory"):
        store = InMemoryLightningStore(clock=clock, watchdog_interval=WATCHDOG_INTERVAL)
    else:
        store = SqliteLightningStore(path, clock=clock, watchdog_interval=WATCHDOG_INTERVAL)
    async with LightningStoreThreaded(store) if kind.startswith("threaded") else store as opened:
        yield Engine(opened, ClockHarness(clock))


@asynccontextmanager
async def postgres(url: str) -> AsyncIterator[Engine]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(EMPTY)
        async with PostgresLightningStore(url, watchdog_interval=WATCHDOG_INTERVAL) as store:
            yield Engine(store, AgingHarness(connection))
    finally:
        await connection.close()


@pytest.fixture(params=ENGINES)
async def engine(request: pytest.FixtureRequest, tmp_path: Path, database_url: str) -> AsyncIterator[Engine]:
    opening = (
        postgres(database_url) if request.param == "postgres" else embedded(request.param, tmp_path / "db")
    )
    async with opening as opened:
        yield opened


@pytest.fixture
def store(engine: Engine) -> LightningStore:
    return engine.store


@pytest.fixture
def harness(engine: Engine) -> Harness:
    return engine.harness
