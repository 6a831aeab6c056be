"""Operations on what feeds memory: how far each log has been read."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.storage.port import Tx
from perdure.memory import sql
from perdure.memory.model import FeedRow


async def get_feeds(tx: Tx, sources: Sequence[str]) -> dict[str, FeedRow]:
    """How far those of the logs have been read that were read at all."""
    return {row.source: row for row in await tx.all(sql.GET_FEEDS, sources=sorted(sources))}


async def set_feed(tx: Tx, feed: FeedRow) -> None:
    """Write how far a log has been read."""
    await tx.write(sql.SET_FEEDS.of([feed]))


async def forget_feeds(tx: Tx, sources: Sequence[str]) -> None:
    """Forget how far logs have been read that are gone."""
    await tx.execute(sql.DROP_FEEDS, sources=list(sources))
