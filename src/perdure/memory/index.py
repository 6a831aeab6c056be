"""Indexes documents that were ingested or made: the consumer of the outbox that search waits for."""

from __future__ import annotations

from perdure.kernel.storage.port import Storage
from perdure.memory import operations
from perdure.memory.model import INDEX_CONSUMER
from perdure.outbox.model import Effect


class MemoryIndexer:
    """Indexes what is not indexed yet, in every namespace.

    An effect is done when nothing waits any more, whichever effect it came with.
    """

    name = INDEX_CONSUMER

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    async def deliver(self, effect: Effect) -> None:
        await self.index_all()

    async def index_all(self) -> int:
        """Index everything that is not indexed yet; returns how many documents there were."""
        total = 0
        for ns in await self.storage.read(operations.pending_namespaces):
            some = operations.INDEX_ROWS
            while some >= operations.INDEX_ROWS:
                some = await self.storage.background(operations.index_some, ns=ns)
                total += some
        return total
