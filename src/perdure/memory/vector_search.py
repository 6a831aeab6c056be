"""Vectors of documents: computed by an embedder, cached in memory by namespace, compared exactly."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from perdure.kernel.storage.port import Storage
from perdure.kernel.vectors import Embedder, Vector, VectorTable
from perdure.memory.operations import vectors
from perdure.memory.operations.search import NEW_VECTORS, DocumentMatches, NearDocuments, add_rows, nearest

EMBED_ROWS = 64
"""Number of documents per embedder call."""
EMBED_CHARACTERS = 8000
CACHED_BYTES = 1 << 30
"""Memory limit of the vectors of all namespaces; the last searched namespaces are kept."""


class MemoryVectors:
    """Vectors of a database's memory, computed by an embedder."""

    def __init__(self, storage: Storage, embedder: Embedder) -> None:
        self.storage = storage
        self.embedder = embedder
        self._tables: OrderedDict[int, VectorTable] = OrderedDict()
        self._embedded: set[int] = set()
        """Namespaces known to have vectors."""

    async def embed(self, ns: int) -> int:
        """Compute the missing vectors of indexed documents; return their number."""
        total = 0
        while True:
            rows = await self.storage.read(vectors.not_embedded, EMBED_ROWS, EMBED_CHARACTERS, ns=ns)
            if not rows:
                return total
            computed = await self.embedder.of_texts([row.body for row in rows])
            await self.storage.background(
                vectors.add, list(zip((row.place for row in rows), computed, strict=True)), ns=ns
            )
            self._embedded.add(ns)
            total += len(rows)

    async def dims(self, ns: int) -> int:
        """Return the size of a vector; 0 while it is unknown."""
        dims = self.embedder.dims
        return await self.storage.read(vectors.dims, ns=ns) if dims is None else dims

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
        """Return the places that are nearest to a vector, from the vectors cached in memory.

        The first search of a namespace reads its vectors; later searches read only new vectors.
        """
        table = self._tables.get(ns)
        if table is None or table.dims != len(vector):
            table = self._tables[ns] = VectorTable(len(vector))
            await self._load(ns, table)
        self._tables.move_to_end(ns)
        near = NearDocuments([], vector, tag_sets, *span, limit, table.last)
        return near._replace(scored=await asyncio.to_thread(nearest, table, near))

    async def learn(self, ns: int, near: NearDocuments | None, matches: DocumentMatches) -> bool:
        """Cache the vectors that a search has read. Return whether its result is valid."""
        if matches.counter is not None and matches.counter.embedded > matches.counter.first_place:
            self._embedded.add(ns)
        table = self._tables.get(ns)
        if near is None or table is None:
            return True
        table.remove(matches.gone)
        add_rows(table, matches.new_vectors)
        more = len(matches.new_vectors) == NEW_VECTORS
        if more:
            await self._load(ns, table)
        return not more and not matches.gone

    async def _load(self, ns: int, table: VectorTable) -> None:
        """Read the vectors of a namespace that are not in memory."""
        rows = await self._read(ns, table)
        while len(rows) == vectors.LOAD_ROWS:
            rows = await self._read(ns, table)
        while len(self._tables) > 1 and sum(cached.size for cached in self._tables.values()) > CACHED_BYTES:
            self._tables.popitem(last=False)

    async def _read(self, ns: int, table: VectorTable) -> Sequence[object]:
        rows = await self.storage.read(vectors.after, table.last, vectors.LOAD_ROWS, ns=ns)
        add_rows(table, rows)
        return rows
