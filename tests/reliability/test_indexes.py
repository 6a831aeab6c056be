"""Indexes of large tables, which are built behind callers' backs."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.kernel.support import soon, until_true
from tests.reliability import catalog
from tests.reliability.places import (
    Place,
    PostgresPlace,
    SqlitePlace,
    insert,
    look,
    open_once,
    opened,
    without_indexes,
)

from perdure.kernel.storage import postgres as postgres_driver
from perdure.kernel.storage import postgres_schema, sqlite_engine
from perdure.kernel.storage.port import Storage
from perdure.kernel.storage.schema import Index, Table
from perdure.kernel.storage.sqlite_engine import SqliteEngine
from perdure.rollouts.tables import ATTEMPTS
from perdure.runtime.stores import TABLES


@pytest.fixture
def sqlite(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path / "perdure.db")


@pytest.fixture
def postgres(postgres_url: str) -> PostgresPlace:
    return PostgresPlace(postgres_url)


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite_engine, postgres_schema):
        monkeypatch.setattr(module, "LARGE_TABLE_ROWS", 20)


BUILT_LATER = sorted(index.name for index in ATTEMPTS.indexes)
ATTEMPT_ROWS = [
    tuple(number if column.type == "int" else f"{column.name}-{number}" for column in ATTEMPTS.columns)
    for number in range(50)
]


async def fill_without_indexes(place: Place) -> None:
    """Attempts in number, in a database whose release knew no index of theirs."""
    older = [without_indexes(table) if table is ATTEMPTS else table for table in TABLES]
    async with opened(place, older) as storage:
        await storage.run(insert, ATTEMPTS, ATTEMPT_ROWS)
    if isinstance(place, PostgresPlace):
        await place.execute("ANALYZE attempts")


async def _being_built(storage: Storage) -> list[str]:
    return sorted((await storage.health())["indexes_being_built"])


async def _all_built(storage: Storage) -> bool:
    return await _being_built(storage) == []


@pytest.mark.usefixtures("small_is_large")
async def test_an_index_of_a_large_table_is_built_later_on_sqlite(
    sqlite: SqlitePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_without_indexes(sqlite)
    may_build = threading.Event()
    build = SqliteEngine.build_index

    def wait_and_build(self: SqliteEngine, table: Table, index: Index) -> None:
        assert may_build.wait(20)
        build(self, table, index)

    monkeypatch.setattr(SqliteEngine, "build_index", wait_and_build)
    storage = sqlite.open()
    assert await _being_built(storage) == BUILT_LATER
    waiting = asyncio.ensure_future(storage.run(look))
    reading = await soon(storage.read(look))
    may_build.set()
    assert await soon(waiting) > reading - 1
    await until_true(lambda: _all_built(storage))
    await storage.close()
    assert await sqlite.catalog() == catalog.declared(TABLES)


@pytest.mark.usefixtures("small_is_large")
async def test_an_index_that_cannot_be_built_stops_nobody_on_sqlite(sqlite: SqlitePlace) -> None:
    await fill_without_indexes(sqlite)
    unique = dataclasses.replace(ATTEMPTS, indexes=(Index("attempts_unique", ("charged",), unique=True),))
    await sqlite.execute("UPDATE attempts SET charged = 1")
    storage = sqlite.open([unique])
    await soon(storage.run(look))
    assert await _being_built(storage) == ["attempts_unique"]
    await storage.close()


@pytest.mark.usefixtures("small_is_large")
async def test_an_index_of_a_large_table_is_built_later_on_postgres(postgres: PostgresPlace) -> None:
    await fill_without_indexes(postgres)
    async with _held_up(postgres) as release:
        storage = postgres.open()
        await soon(storage.run(look))
        assert await _being_built(storage) == BUILT_LATER
        await soon(storage.run(insert, ATTEMPTS, [(1, "other", *ATTEMPT_ROWS[0][2:])]))
        await release()
        await until_true(lambda: _all_built(storage))
        await storage.close()
    assert await postgres.catalog() == catalog.declared(TABLES)


@asynccontextmanager
async def _held_up(place: PostgresPlace) -> AsyncIterator[Callable[[], Any]]:
    """A transaction that has written to the table, which every concurrent build waits for."""
    connection = await asyncpg.connect(place.url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("UPDATE attempts SET charged = charged WHERE sequence_id = 1")
    try:
        yield transaction.commit
    finally:
        await connection.close()


@pytest.mark.usefixtures("small_is_large")
async def test_a_build_may_take_longer_than_a_call(
    postgres: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a build takes, no limit of a single call ends it."""
    await fill_without_indexes(postgres)
    connect = asyncpg.connect

    async def impatient(*args: Any, **options: Any) -> Any:
        return await connect(*args, **{**options, "command_timeout": 0.2})

    watcher = await asyncpg.connect(postgres.url)
    async with _held_up(postgres) as release:
        storage = postgres.open()
        monkeypatch.setattr(asyncpg, "connect", impatient)
        await soon(storage.run(look))
        await until_true(lambda: watcher.fetchval(BUILDING_FOR_LONG))
        monkeypatch.setattr(asyncpg, "connect", connect)
        await release()
        await until_true(lambda: _all_built(storage))
        await storage.close()
    await watcher.close()
    assert await postgres.catalog() == catalog.declared(TABLES)


BUILDS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
AND query LIKE 'CREATE %INDEX CONCURRENTLY%'
"""
BUILDING_FOR_LONG = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
AND query LIKE 'CREATE %INDEX CONCURRENTLY%' AND clock_timestamp() - query_start > interval '0.5 seconds'
"""


@pytest.mark.usefixtures("small_is_large")
async def test_whoever_opens_during_a_build_leaves_it_alone(postgres: PostgresPlace) -> None:
    await fill_without_indexes(postgres)
    watcher = await asyncpg.connect(postgres.url)
    async with _held_up(postgres) as release:
        first = postgres.open()
        await soon(first.run(look))
        await until_true(lambda: watcher.fetchval("SELECT count(*) FROM pg_stat_progress_create_index"))
        second = postgres.open()
        await soon(second.run(look))
        await release()
        await until_true(lambda: _all_built(first))
        await first.close()
        await second.close()
    await watcher.close()
    await open_once(postgres)
    assert await postgres.catalog() == catalog.declared(TABLES)


@pytest.mark.usefixtures("small_is_large")
async def test_builds_that_start_in_the_same_moment_both_end(
    postgres: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends one of two builds of a table that wait for each other, which is then tried again."""
    await fill_without_indexes(postgres)
    answers = iter([False, False])

    async def has_not_seen_the_other(connection: Any, table: Any) -> bool:
        return next(answers, None) is None and await is_busy(connection, table)

    is_busy = postgres_driver._is_busy
    monkeypatch.setattr(postgres_driver, "_is_busy", has_not_seen_the_other)
    async with _held_up(postgres) as release:
        stores = [postgres.open(), postgres.open()]
        for store in stores:
            await soon(store.run(look))
        await until_true(lambda: _are_two_builds_there(postgres))
        await release()
        for store in stores:
            await until_true(lambda store=store: _all_built(store))  # type: ignore[misc]
            await store.close()
    await open_once(postgres)
    assert await postgres.catalog() == catalog.declared(TABLES)


async def _are_two_builds_there(place: PostgresPlace) -> bool:
    connection = await asyncpg.connect(place.url)
    try:
        return bool(await connection.fetchval(BUILDS) == 2)
    finally:
        await connection.close()


async def test_an_index_that_a_broken_build_left_behind_is_built_again(postgres: PostgresPlace) -> None:
    await fill_without_indexes(postgres)
    await postgres.execute("UPDATE attempts SET check_at = 5")
    connection = await asyncpg.connect(postgres.url)
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute("CREATE UNIQUE INDEX CONCURRENTLY attempts_check ON attempts (check_at)")
    broken = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'attempts_check'::regclass"
    assert await connection.fetchval(broken) is False
    await connection.close()
    await open_once(postgres)
    assert await postgres.catalog() == catalog.declared(TABLES)
