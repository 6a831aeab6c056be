"""Vectors of documents: made by an embedder, kept in memory by namespace, and compared exactly."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from perdure.kernel.storage.port import Storage
from perdure.kernel.vectors import Embedder, Vector, VectorTable
from perdure.memory.operations import vectors
from perdure.memory.operations.search import NEW_VECTORS, DocumentMatches, NearDocuments, add_rows, nearest

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
        self._embedded: set[int] = set()
        """The namespaces that are known to have vectors."""

    async def embed(self, ns: int) -> int:
        """Make the vectors of what is indexed and has none yet; returns how many there were."""
        total = 0
        while True:
            rows = await self.storage.read(vectors.not_embedded, EMBED_ROWS, EMBED_CHARACTERS, ns=ns)
            if not rows:
                return total
            made = await self.embedder.of_texts([row.body for row in rows])
            await self.storage.background(
                vectors.add, list(zip((row.place for row in rows), made, strict=True)), ns=ns
            )
            self._embedded.add(ns)
            total += len(rows)

    async def dims(self, ns: int) -> int:
        """How many numbers a vector has; 0 while nobody knows."""
        known = self.embedder.dims
        return await self.storage.read(vectors.dims, ns=ns) if known is None else known

    def has_any(self, ns: int) -> bool:
        """Return whether a namespace is known to have vectors."""
        return ns in self._embedded

    async def near(
        self,
        ns: int,
        vector: Vector,
        tag_sets: tuple[tuple[str, ...], ...],
        span: tuple[int | None, int | None],
        limit: int,
    ) -> NearDocuments:
        """Return the places in memory that are nearest to a vector.

        The vectors of a namespace are read when it is searched first; each search reads the new ones.
        """
        table = self._tables.get(ns)
        if table is None or table.dims != len(vector):
            table = self._tables[ns] = VectorTable(len(vector))
            await self._load(ns, table)
        self._tables.move_to_end(ns)
        near = NearDocuments([], vector, tag_sets, *span, limit, table.last)
        return near._replace(scored=await asyncio.to_thread(nearest, table, near))

    async def learn(self, ns: int, near: NearDocuments | None, found: DocumentMatches) -> bool:
        """Keep in memory what a search has read; returns whether what it found stands."""
        if found.counter is not None and found.counter.embedded > found.counter.first_place:
            self._embedded.add(ns)
        table = self._tables.get(ns)
        if near is None or table is None:
            return True
        table.remove(found.gone)
        add_rows(table, found.new_vectors)
        more = len(found.new_vectors) == NEW_VECTORS
        if more:
            await self._load(ns, table)
        return not more and not found.gone

    async def _load(self, ns: int, table: VectorTable) -> None:
        """Read the vectors of a namespace that are not in memory."""
        rows = await self._read(ns, table)
        while len(rows) == vectors.LOAD_ROWS:
            rows = await self._read(ns, table)
        while len(self._tables) > 1 and sum(each.size for each in self._tables.values()) > CACHED_BYTES:
            self._tables.popitem(last=False)

    async def _read(self, ns: int, table: VectorTable) -> Sequence[object]:
        rows = await self.storage.read(vectors.after, table.last, vectors.LOAD_ROWS, ns=ns)
        add_rows(table, rows)
        return rows
