"""Removing rollouts that leave no trace."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.operations.work import add_counts


async def remove_rollouts(tx: Tx, ids: Sequence[str], kind: str) -> None:
    """Delete rollouts of a kind that has neither lines nor spans, with their attempts."""
    counts: dict[tuple[str, str], int] = {}
    for row in await tx.all(sql.LOAD_ROLLOUTS, ids=sorted(ids), kinds=[kind]):
        counts[row.kind, row.status] = counts.get((row.kind, row.status), 0) - 1
    await tx.execute(sql.DROP_ATTEMPTS, ids=list(ids))
    await tx.execute(sql.DROP_ROLLOUTS, ids=list(ids), kind=kind)
    add_counts(tx, counts)
