"""Operations on the vectors of documents."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.storage.port import Tx
from perdure.memory import sql
from perdure.memory.model import DocumentVectorRow, HitRow, VectorDocument, build_document_range
from perdure.memory.operations.index import lock_counter

LOAD_ROWS = 2000


async def not_embedded(tx: Tx, limit: int, characters: int) -> list[HitRow]:
    """Return the next indexed documents without a vector, with the beginning of each text."""
    assert tx.ns is not None
    counter = await tx.one(sql.GET_COUNTER)
    if counter is None or counter.embedded >= counter.placed:
        return []
    _, high = build_document_range(tx.ns)
    return await tx.all(
        sql.DOCUMENTS_AFTER, after=counter.embedded, high=high, limit=limit, characters=characters
    )


async def add(tx: Tx, vectors: Sequence[tuple[int, bytes]]) -> None:
    """Store vectors in the order of their documents' places; earlier documents already have vectors."""
    counter = await lock_counter(tx)
    await tx.write(sql.ADD_VECTORS.of([DocumentVectorRow(place, vector) for place, vector in vectors]))
    last = max(place for place, _ in vectors)
    counter = counter._replace(embedded=max(counter.embedded, last), embedded_at=tx.now)
    await tx.update_many(sql.COUNT, [counter])


async def after(tx: Tx, place: int, limit: int) -> list[VectorDocument]:
    """Return the next vectors of existing documents after a place."""
    return await tx.all(sql.VECTORS_AFTER, after=place, limit=limit)


async def dims(tx: Tx) -> int:
    """Return the size of the stored vectors; 0 if there are none."""
    row = await tx.one(sql.ONE_VECTOR)
    return 0 if row is None else len(row.vector) // 4


async def documents(tx: Tx, places: Sequence[int], characters: int) -> dict[int, HitRow]:
    """Return the documents at places, with the beginning of each text."""
    if not places:
        return {}
    rows = await tx.all(sql.DOCUMENTS_AT, places=list(places), characters=characters)
    return {row.place: row for row in rows}
