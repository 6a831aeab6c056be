"""Tables of a PostgreSQL database as rows: read in one snapshot by cursors, and written by COPY."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from perdure.kernel.errors import Conflict
from perdure.kernel.storage.postgres_connection import LOST, Connection, PostgresPool, translate
from perdure.kernel.storage.postgres_schema import upgrade
from perdure.kernel.storage.schema import Schema, Table

ROWS = 1000
"""Number of rows per fetch of a cursor."""
COPY_SECONDS = 3600.0
Rows = Iterable[Sequence[Any]]
Write = Callable[[Table, Sequence[Sequence[Any]]], None]

_PRESENT = (
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
)
_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'perdure' AND pid <> pg_backend_pid()
"""


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    connections = PostgresPool(dsn, size=1, timeout=30.0, pgbouncer=False)
    try:
        connection = await connections.single()
        try:
            yield connection
        finally:
            await connection.close()
    except (*LOST, TimeoutError, asyncpg.PostgresError) as error:
        raise translate(error, connections.where) from error


async def dump(dsn: str, schema: Schema, write: Write) -> None:
    """Pass every row of every table, from one snapshot, to `write`. Writers are not blocked."""
    async with connected(dsn) as connection:
        await connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            present = {tuple(row) for row in await connection.fetch(_PRESENT)}
            for table in schema.tables.values():
                if not any(name == table.name for name, _ in present):
                    continue
                columns = [
                    column.name if (table.name, column.name) in present else "NULL"
                    for column in table.columns
                ]
                text = "SELECT " + ", ".join(columns) + " FROM " + table.name
                cursor = await connection.cursor(text)
                while rows := await cursor.fetch(ROWS, timeout=COPY_SECONDS):
                    write(table, [tuple(row) for row in rows])


async def is_empty(dsn: str) -> bool:
    """Return whether a database has no perdure tables, or no rows in them."""
    async with connected(dsn) as connection:
        if await connection.fetchval("SELECT to_regclass('namespaces')") is None:
            return True
        return not await connection.fetchval("SELECT EXISTS (SELECT 1 FROM namespaces)")


async def load(dsn: str, schema: Schema, rows_of: Callable[[Table], Iterable[Rows]]) -> None:
    """Replace all rows in one transaction; refused while a server or worker is connected."""
    async with connected(dsn) as connection:
        others = await connection.fetchval(_OTHERS)
        if others:
            raise Conflict(
                f"perdure has {others} connections to this database open; stop its servers and workers first"
            )
        await connection.execute("SET statement_timeout = 0")
        await upgrade(connection, schema)
        names = list(schema.tables)
        async with connection.transaction():
            await connection.execute("TRUNCATE " + ", ".join(names), timeout=COPY_SECONDS)
            for table in schema.tables.values():
                for rows in rows_of(table):
                    await connection.copy_records_to_table(
                        table.name, records=rows, columns=table.names, timeout=COPY_SECONDS
                    )
        await connection.execute("ANALYZE", timeout=COPY_SECONDS)
