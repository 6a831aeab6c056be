"""Makes statistics older than they are."""

from __future__ import annotations

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.statistics.model import MINUTE

# Uses numbers that no minute has: PostgreSQL checks keys row by row, and the next row may still have the key.
OLDER = tuple(
    (
        statement(f"UPDATE {table} SET minute = -minute"),
        statement(f"UPDATE {table} SET minute = -minute - :age"),
    )
    for table in ("queue_minutes", "queue_waits")
)


async def age(tx: Tx, minutes: int) -> None:
    """Move all minutes of queues `minutes` minutes back."""
    for aside, back in OLDER:
        await tx.execute(aside)
        await tx.execute(back, age=minutes * MINUTE)
