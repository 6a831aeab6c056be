"""What the tests of the access room share: stores, raw rows, and rows that grow old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure import open_store
from perdure.access.service import Access
from perdure.kernel.clock import to_micros
from perdure.kernel.storage.dialect import Statement, statement
from perdure.kernel.storage.port import Row, Storage, Tx
from perdure.rollouts.store import DatabaseLightningStore

__all__ = ["Access", "age", "everything_stored", "open_engine", "rows_of"]

_AGE = (
    statement(
        "UPDATE tokens SET create_time = create_time - :age, expire_time = expire_time - :age,"
        " last_used_time = last_used_time - :age"
    ),
    statement("UPDATE audit SET id = id - :age"),
    statement("UPDATE idempotency SET time = time - :age"),
)
_ROWS = {
    "tokens": statement("SELECT * FROM tokens"),
    "audit": statement("SELECT * FROM audit"),
    "idempotency": statement("SELECT * FROM idempotency"),
    "rollouts": statement("SELECT * FROM rollouts"),
    "attempts": statement("SELECT * FROM attempts"),
}


def open_engine(url: str) -> DatabaseLightningStore:
    return open_store(url, watchdog_interval=None)


async def _all(tx: Tx, sql: Statement[Any]) -> Sequence[Row]:
    return [tuple(row) for row in await tx.all(sql)]


async def rows_of(storage: Storage, table: str) -> Sequence[Row]:
    return await storage.read(_all, _ROWS[table])


async def everything_stored(storage: Storage) -> str:
    """All of this room's rows as one text."""
    return repr([await rows_of(storage, table) for table in ("tokens", "audit", "idempotency")])


async def _age(tx: Tx, seconds: float) -> None:
    for sql in _AGE:
        await tx.execute(sql, age=to_micros(seconds))


async def age(storage: Storage, seconds: float) -> None:
    """Make everything in this room so many seconds older."""
    await storage.run(_age, seconds)
