"""Operations on the read positions of logs."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.storage.port import Tx
from perdure.memory import sql
from perdure.memory.model import FeedRow


async def get_feeds(tx: Tx, sources: Sequence[str]) -> dict[str, FeedRow]:
    """Return the read positions of logs, by source."""
    return {row.source: row for row in await tx.all(sql.GET_FEEDS, sources=sorted(sources))}


async def set_feed(tx: Tx, feed: FeedRow) -> None:
    """Write the read position of a log."""
    await tx.write(sql.SET_FEEDS.of([feed]))


async def forget_feeds(tx: Tx, sources: Sequence[str]) -> None:
    """Delete the read positions of deleted logs."""
    await tx.execute(sql.DROP_FEEDS, sources=list(sources))
