"""Outbox consumer that indexes new documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.kernel.storage.port import Storage
from perdure.memory.model import INDEX_CONSUMER
from perdure.memory.operations import index
from perdure.memory.vector_search import MemoryVectors
from perdure.outbox.model import ENDLESS, DeliveryPolicy, Effect

POLICY = DeliveryPolicy(retries=ENDLESS, batch=500, concurrency=1, deadline=120.0, gather=0.2, keep=False)
"""Indexing is retried without limit; one delivery indexes many events."""


class MemoryIndexer:
    """Indexer of pending documents.

    An effect is done when its namespace has no pending documents, including documents of other effects.
    """

    name = INDEX_CONSUMER
    policy = POLICY

    def __init__(self, storage: Storage, vectors: MemoryVectors | None = None) -> None:
        self.storage = storage
        self.vectors = vectors

    async def deliver_batch(self, ns: int, effects: Sequence[Effect]) -> Mapping[str, Exception]:
        await self.index(ns)
        return {}

    async def index(self, ns: int) -> int:
        """Index all pending documents of a namespace; return their number."""
        total, some = 0, index.INDEX_ROWS
        while some >= index.INDEX_ROWS:
            some = await self.storage.background(index.index_some, ns=ns)
            total += some
        if self.vectors is not None:
            # Words are indexed even if the embedder fails; the effects are retried for the vectors.
            await self.vectors.embed(ns)
        return total
