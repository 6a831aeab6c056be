"""Databases that a test opens as often as it likes, with whatever tables it likes."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
from tests.reliability import catalog
from tests.reliability.catalog import Catalog, Rows

from perdure import PostgresLightningStore, SqliteLightningStore
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.schema import Table
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import TABLES


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


def without_indexes(table: Table) -> Table:
    """The table with its key alone, and with the indexes that its foreign keys came with."""
    needed = [each.columns for each in table.foreign_keys]
    indexes = tuple(each for each in table.indexes if any(each.columns[: len(of)] == of for of in needed))
    return dataclasses.replace(table, indexes=indexes)
