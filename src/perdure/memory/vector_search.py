"""Search by vectors: those of a namespace are kept in memory, and compared exactly."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from perdure.kernel.storage.port import Storage
from perdure.kernel.vectors import Embedder, VectorTable
from perdure.memory.model import HitRow
from perdure.memory.operations import vectors

EMBED_ROWS = 64
"""How many documents are embedded at once."""
EMBED_CHARACTERS = 8000
CACHED_BYTES = 1 << 30
"""How much memory the vectors of all namespaces may take; those searched last are kept."""


class MemoryVectors:
    """The vectors of a database's memory: made of documents by an embedder, and searched."""

    def __init__(self, storage: Storage, embedder: Embedder) -> None:
        self.storage = storage
        self.embedder = embedder
        self._tables: OrderedDict[int, VectorTable] = OrderedDict()

    async def embed(self, ns: int) -> int:
        """Make the vectors of what is indexed and has none yet; returns how many there were."""
        total = 0
        while True:
            rows = await self.storage.read(vectors.not_embedded, EMBED_ROWS, ns=ns)
            if not rows:
                return total
            made = await self.embedder.of_texts([row.body[:EMBED_CHARACTERS] for row in rows])
            await self.storage.background(
                vectors.add, list(zip((row.place for row in rows), made, strict=True)), ns=ns
            )
            total += len(rows)

    async def dims(self, ns: int) -> int:
        """How many numbers a vector has; 0 while nobody knows."""
        known = self.embedder.dims
        return await self.storage.read(vectors.dims, ns=ns) if known is None else known

    async def search(
        self, ns: int, query: str, tags: Sequence[str], span: tuple[int | None, int | None], limit: int
    ) -> list[HitRow]:
        """The documents that are nearest to a query."""
        vector = await self.embedder.of_query(query)
        table = await self._table(ns, len(vector))
        since, until = span
        while True:
            found = await asyncio.to_thread(table.nearest, vector, limit, tags, since, until)
            rows = await self.storage.read(vectors.documents, [place for _, place in found], ns=ns)
            gone = [place for _, place in found if place not in rows]
            if not gone:
                return [rows[place]._replace(score=score) for score, place in found]
            # They were replaced or deleted since they were read.
            table.remove(gone)

    async def _table(self, ns: int, dims: int) -> VectorTable:
        """The vectors of a namespace, with those that came since the last search."""
        table = self._tables.get(ns)
        if table is None or table.dims != dims:
            table = self._tables[ns] = VectorTable(dims)
        self._tables.move_to_end(ns)
        while True:
            rows = await self.storage.read(vectors.after, table.last, ns=ns)
            table.add((row.place, row.vector, row.tags.split(" "), row.timestamp_ms) for row in rows)
            if len(rows) < vectors.LOAD_ROWS:
                break
        while len(self._tables) > 1 and sum(each.size for each in self._tables.values()) > CACHED_BYTES:
            self._tables.popitem(last=False)
        return table
