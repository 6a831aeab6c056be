"""Reads the PostgreSQL database of another program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from perdure.kernel.storage.postgres_dump import connected

Fetch = Callable[..., Awaitable[Sequence[Sequence[Any]]]]


@asynccontextmanager
async def foreign_postgres(dsn: str) -> AsyncIterator[Fetch]:
    """Connect to a database; return a function that fetches the rows of a statement.

    Each statement is a separate transaction, so that the other program is not blocked.
    """
    async with connected(dsn) as connection:
        await connection.execute("SET default_transaction_read_only = on")

        async def fetch(statement: str, *values: Any) -> Sequence[Sequence[Any]]:
            return [tuple(row) for row in await connection.fetch(statement, *values)]

        yield fetch
