"""The schema: the same on both engines, and only ever extended, in the open and behind callers' backs."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest
from tests.fixtures.make_release import definitions, path_of
from tests.kernel.support import soon, until_true
from tests.reliability import catalog
from tests.reliability.catalog import Catalog, Rows

from perdure import PostgresLightningStore, SqliteLightningStore, __version__
from perdure.kernel.errors import NewerSchema
from perdure.kernel.storage import postgres_schema, sqlite_engine
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.schema import META, SCHEMA_GENERATION, Column, Index, Schema, Table
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.kernel.storage.sqlite_engine import SqliteEngine
from perdure.rollouts.store import DatabaseLightningStore
from perdure.rollouts.tables import ATTEMPTS, ROLLOUTS
from perdure.runtime.stores import TABLES
from perdure.testing import servers

RELEASES = ("0.1.0",)


class SqlitePlace:
    """A SQLite file, opened as often as a test likes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, tables: Iterable[Table] = TABLES) -> Storage:
        return SqliteStorage(self.path, tables)

    def store(self) -> DatabaseLightningStore:
        return SqliteLightningStore(self.path, watchdog_interval=None)

    async def catalog(self) -> Catalog:
        return catalog.of_sqlite(self.path)

    async def rows(self) -> Rows:
        return catalog.rows_of_sqlite(self.path)

    async def execute(self, sql: str) -> None:
        connection = apsw.Connection(str(self.path))
        connection.execute(sql)
        connection.close()


class PostgresPlace:
    """A PostgreSQL database."""

    def __init__(self, url: str) -> None:
        self.url = url

    def open(self, tables: Iterable[Table] = TABLES) -> Storage:
        return PostgresStorage(self.url, tables)

    def store(self) -> DatabaseLightningStore:
        return PostgresLightningStore(self.url, watchdog_interval=None)

    async def catalog(self) -> Catalog:
        return await catalog.of_postgres(self.url)

    async def rows(self) -> Rows:
        return await catalog.rows_of_postgres(self.url)

    async def execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(sql)
        await connection.close()


Place = SqlitePlace | PostgresPlace


@pytest.fixture
def sqlite(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path / "perdure.db")


@pytest.fixture
def postgres(postgres_url: str) -> PostgresPlace:
    return PostgresPlace(postgres_url)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, postgres_server_url: str) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqlitePlace(tmp_path / "perdure.db")
        return
    name = f"schema_{uuid.uuid4().hex}"
    servers.create_database(postgres_server_url, name)
    yield PostgresPlace(servers.with_database(postgres_server_url, name))
    servers.drop_database(postgres_server_url, name)


async def look(tx: Tx) -> int:
    return tx.now


async def insert(tx: Tx, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    await tx.insert_many(table, rows)


@asynccontextmanager
async def opened(place: Place, tables: Iterable[Table] = TABLES) -> AsyncIterator[Storage]:
    storage = place.open(tables)
    try:
        await storage.run(look)
        yield storage
    finally:
        await storage.close()


async def open_once(place: Place, tables: Iterable[Table] = TABLES) -> None:
    async with opened(place, tables):
        pass


# --- parity -----------------------------------------------------------------------------------------------


async def test_both_engines_have_what_is_declared(sqlite: SqlitePlace, postgres: PostgresPlace) -> None:
    await open_once(sqlite)
    await open_once(postgres)
    expected = catalog.declared(TABLES)
    assert await sqlite.catalog() == expected
    assert await postgres.catalog() == expected


async def test_columns_stand_in_the_order_of_the_declaration(place: Place) -> None:
    await open_once(place)
    seen = await place.catalog()
    assert {name: tuple(table.columns) for name, table in seen.items()} == {
        table.name: table.names for table in Schema(TABLES).tables.values()
    }


def test_every_key_leads_with_its_namespace() -> None:
    other = {META.name, "namespaces"}
    assert {table.name for table in TABLES if table.key[0] != "ns"} <= other


def test_what_may_be_added_later_is_nullable_or_has_a_default() -> None:
    """Blobs and other large values stand last, where a row that is not read whole ends before them."""
    for table in TABLES:
        kinds = [column.type for column in table.columns]
        assert "blob" not in kinds[:-1], table.name


def test_names_are_not_used_twice() -> None:
    names = [index.name for table in TABLES for index in table.indexes] + [table.name for table in TABLES]
    assert len(set(names)) == len(names)
    with pytest.raises(AssertionError, match="twice"):
        Schema([ROLLOUTS, ROLLOUTS])


# --- older declarations -----------------------------------------------------------------------------------


def _mentions(index: Index, column: Column) -> bool:
    return any(each.split()[0] == column.name for each in index.columns) or column.name in (index.where or "")


def without_columns(table: Table) -> Table:
    """The table before its nullable and defaulted columns came."""
    dropped = [
        each
        for each in table.columns
        if (each.null or each.default is not None) and each.name not in table.key
    ]
    kept = tuple(each for each in table.columns if each not in dropped)
    indexes = tuple(each for each in table.indexes if not any(_mentions(each, column) for column in dropped))
    return dataclasses.replace(table, columns=kept, indexes=indexes, probes=())


def without_indexes(table: Table) -> Table:
    return dataclasses.replace(table, indexes=())


def fewer_columns() -> list[Table]:
    return [without_columns(table) for table in TABLES]


def fewer_indexes() -> list[Table]:
    return [without_indexes(table) for table in TABLES]


def fewer_tables() -> list[Table]:
    return list(TABLES[::2])


def fewer_of_everything() -> list[Table]:
    return [without_indexes(without_columns(table)) for table in TABLES[1::2]]


def example(column: Column, number: int) -> Any:
    if column.null and number % 2:
        return None
    return {"int": number, "text": f"{column.name}-{number}", "blob": bytes([number])}[column.type]


def examples(table: Table) -> list[tuple[Any, ...]]:
    return [tuple(example(column, number) for column in table.columns) for number in range(1, 6)]


@pytest.mark.parametrize("older", [fewer_columns, fewer_indexes, fewer_tables, fewer_of_everything])
async def test_an_older_database_is_extended_and_keeps_its_rows(
    place: Place, older: Callable[[], list[Table]]
) -> None:
    tables = older()
    async with opened(place, tables) as storage:
        for table in tables:
            await storage.run(insert, table, examples(table))
    before = await place.rows()
    await open_once(place)
    assert await place.catalog() == catalog.declared(TABLES)
    after = await place.rows()
    assert {
        name: [_only(row, before[name]) for row in rows] for name, rows in after.items() if name in before
    } == before
    for table in Schema(TABLES).tables.values():
        added = [
            each
            for each in table.columns
            if before.get(table.name) and each.name not in before[table.name][0]
        ]
        for row in after[table.name]:
            assert {each.name: row[each.name] for each in added} == {
                each.name: each.default for each in added
            }
    await open_once(place)
    assert await place.rows() == after


def _only(row: dict[str, Any], older: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in older[0]} if older else row


async def test_the_store_works_on_a_database_that_was_extended(place: Place) -> None:
    await open_once(place, fewer_of_everything())
    async with place.store() as store:
        await _use(store)


async def _use(store: DatabaseLightningStore) -> None:
    rollout = await store.enqueue_rollout({"n": 1}, idempotency_key="once", priority=3)
    claimed = await store.dequeue_rollout("worker")
    assert claimed is not None
    assert claimed.rollout_id == rollout.rollout_id
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    assert [each.status for each in await store.query_rollouts()] == ["succeeded"]
    assert (await store.statistics())["total_rollouts"] == 1


async def test_an_older_release_works_on_a_newer_database(place: Place) -> None:
    """What a newer release added is nullable or has a default, so that this one need not know of it."""
    extra = (Column("added", "text", null=True), Column("counted", "int", default=5))
    newer = [dataclasses.replace(table, columns=(*table.columns, *extra)) for table in TABLES]
    newer[0] = dataclasses.replace(newer[0], indexes=(*newer[0].indexes, Index("added_index", ("added",))))
    newer.append(Table("added_table", (Column("id", "int"),), key=("id",)))
    await open_once(place, newer)
    async with place.store() as store:
        await _use(store)
    assert await place.catalog() == catalog.declared(newer)
    assert {row["counted"] for row in (await place.rows())["rollouts"]} == {5}


async def test_a_newer_generation_is_refused(place: Place) -> None:
    await open_once(place)
    await place.execute(f"UPDATE perdure_meta SET value = '{SCHEMA_GENERATION + 1}' WHERE name = 'schema'")
    before = await place.rows()
    with pytest.raises(NewerSchema):
        await open_once(place, [*TABLES, Table("added_table", (Column("id", "int"),), key=("id",))])
    assert await place.rows() == before


# --- indexes that are built behind callers' backs ---------------------------------------------------------


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


# --- what earlier releases made ---------------------------------------------------------------------------


async def _load(place: Place, release: str) -> None:
    engine = "sqlite" if isinstance(place, SqlitePlace) else "postgres"
    await place.execute(path_of(release, engine).read_text(encoding="utf-8"))


@pytest.mark.parametrize("release", RELEASES)
async def test_a_database_of_an_earlier_release_opens_with_its_rows_intact(
    place: Place, release: str
) -> None:
    await _load(place, release)
    before = await place.rows()
    assert len(before["rollouts"]) == 10
    await open_once(place)
    assert await place.catalog() == catalog.declared(TABLES)
    after = await place.rows()
    assert {name: [_only(row, rows) for row in after[name]] for name, rows in before.items()} == before


@pytest.mark.parametrize("release", RELEASES)
async def test_both_engines_of_an_earlier_release_held_the_same(
    sqlite: SqlitePlace, postgres: PostgresPlace, release: str
) -> None:
    await _load(sqlite, release)
    await _load(postgres, release)
    assert await sqlite.rows() == await postgres.rows()


@pytest.mark.parametrize("release", RELEASES)
async def test_the_store_reads_what_an_earlier_release_wrote(place: Place, release: str) -> None:
    await _load(place, release)
    async with place.store() as store:
        ended = await store.query_rollouts(status_in=["succeeded"])
        assert [each.input for each in ended] == [{"word": "hello"}]
        spans = await store.query_spans(ended[0].rollout_id)
        assert [each.name for each in spans] == ["step 1", "step 2", "step 3"]
        assert {each.model_extra["unknown"]["kept"] for each in spans} == {True}
        assert {each.resource.attributes["service.name"] for each in spans} == {"fixture"}
        latest = await store.get_latest_resources()
        assert latest is not None
        assert latest.version == 2
        again = await store.enqueue_rollout("another", idempotency_key="key-1")
        assert again.input == "once"
        assert len(await store.in_namespace("other team").query_rollouts()) == 1
        claimed = await store.dequeue_rollout("new worker")
        assert claimed is not None


def test_the_release_that_is_not_out_yet_is_written_down_as_it_is() -> None:
    """If this fails, run `python -m tests.fixtures.make_release`, or raise the version first if it is out."""
    for engine in ("sqlite", "postgres"):
        written = path_of(__version__, engine).read_text(encoding="utf-8").splitlines()
        assert [line for line in written if line.startswith("CREATE")] == list(definitions(engine))
