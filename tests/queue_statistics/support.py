"""Makes statistics older than they are."""

from __future__ import annotations

from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.statistics.model import MINUTE

OLDER = (
    statement("UPDATE queue_minutes SET minute = minute - :age"),
    statement("UPDATE queue_waits SET minute = minute - :age"),
)


async def age(tx: Tx, minutes: int) -> None:
    """Let all minutes of queues be so many minutes earlier."""
    for each in OLDER:
        await tx.execute(each, age=minutes * MINUTE)
