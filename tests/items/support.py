"""What the tests of items share: time that passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.kernel.clock import to_micros
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Row, Storage, Tx

_AGE = statement(
    "UPDATE items SET expires = expires - :age, updated = updated - :age, created = created - :age"
)
_ROWS = statement("SELECT path, key FROM items ORDER BY path, key")
_AUDIT = statement("SELECT actor, action, count, object FROM audit ORDER BY id")


async def _age(tx: Tx, seconds: float) -> None:
    await tx.execute(_AGE, age=to_micros(seconds))


async def age(storage: Storage, minutes: float) -> None:
    """Make every item so many minutes older."""
    await storage.run(_age, minutes * 60)


async def _all(tx: Tx, sql: Any) -> Sequence[Row]:
    return [tuple(row) for row in await tx.all(sql)]


async def rows_of(storage: Storage) -> Sequence[Row]:
    """Every row that is there, seen or not."""
    return await storage.read(_all, _ROWS)


async def audit_of(storage: Storage) -> Sequence[Row]:
    return await storage.read(_all, _AUDIT)
