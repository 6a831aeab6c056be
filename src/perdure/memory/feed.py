"""How runs reach memory: their ends go into the outbox while somebody feeds memory from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.kernel.storage.port import Tx
from perdure.outbox.operations import NewEffect, put
from perdure.rollouts.model import EndedRollout, Listener

FEED_CONSUMER: Final = "memory-feed"
FEED_CHANNEL: Final = "memory.feed"
"""Followed by processes that feed memory; without a follower the end of a run costs nothing more."""


async def _ended(tx: Tx, ended: Sequence[EndedRollout]) -> None:
    if tx.wants(FEED_CHANNEL):
        await put(tx, [NewEffect(FEED_CONSUMER, each.rollout_id, "{}") for each in ended])


MEMORY_FEED: Final = Listener(on_ended=_ended)
