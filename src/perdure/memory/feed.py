"""Outbox entries for ended runs, written while a process feeds memory from runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.kernel.storage.port import Tx
from perdure.outbox.operations import NewEffect, put
from perdure.rollouts.model import EndedRollout, Listener

FEED_CONSUMER: Final = "memory-feed"
FEED_CHANNEL: Final = "memory.feed"
"""Followed by processes that feed memory; without a follower, ended runs write no entry."""


async def feed_ended(tx: Tx, ended: Sequence[EndedRollout]) -> None:
    """Put ended runs and phases into the outbox."""
    if tx.wants(FEED_CHANNEL):
        await put(tx, [NewEffect(FEED_CONSUMER, rollout.rollout_id, "{}") for rollout in ended])


MEMORY_FEED: Final = Listener(on_ended=feed_ended)
"""Listener of runs."""
