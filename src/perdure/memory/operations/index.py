"""Operations on documents and their index.

The counters of a namespace are locked before its documents.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.storage.port import Tx
from perdure.memory import sql
from perdure.memory.model import (
    INDEX_CONSUMER,
    TOC_CONSUMER,
    MemoryCounterRow,
    MemoryCountRow,
    NewDocumentRow,
    TextRow,
    build_document_range,
)
from perdure.memory.nodes import FAILED
from perdure.outbox.model import PENDING

INDEX_ROWS = 500
"""Number of documents that one transaction indexes."""


async def index_some(tx: Tx) -> int:
    """Index a batch of pending documents; return its size.

    Places follow the order of commits, because the counter row of the namespace is locked.
    """
    counter = await lock_counter(tx)
    ids = await tx.all(sql.PENDING, limit=INDEX_ROWS)
    if ids:
        rows = [NewDocumentRow(id, counter.placed + number) for number, id in enumerate(ids, 1)]
        await tx.write(sql.PLACE.of(rows))
        count = len(rows)
        counter = counter._replace(placed=counter.placed + count, documents=counter.documents + count)
        await tx.update_many(sql.COUNT, [counter])
    return len(ids)


async def lock_counter(tx: Tx) -> MemoryCounterRow:
    """Lock the counters of the namespace."""
    counter = await tx.one(sql.LOCK_COUNTER)
    if counter is None:
        assert tx.ns is not None
        low, _ = build_document_range(tx.ns)
        await tx.write(sql.ADD_COUNTER.of([MemoryCounterRow(tx.ns, low, 0, low)]))
        counter = await tx.one(sql.LOCK_COUNTER)
    assert counter is not None
    return counter


async def get_counter(tx: Tx) -> MemoryCounterRow | None:
    """Get the counters of the namespace, if it has any."""
    return await tx.one(sql.GET_COUNTER)


async def put_texts(tx: Tx, texts: Sequence[TextRow], gone: Sequence[str] = ()) -> None:
    """Insert or replace documents, which are indexed later. Delete the documents in `gone`."""
    ids = sorted({*gone, *(text.id for text in texts)})
    if not ids:
        return
    counter = await lock_counter(tx)
    places = await tx.all(sql.PLACED, ids=ids)
    if places:
        counter = counter._replace(documents=counter.documents - len(places))
        await tx.update_many(sql.COUNT, [counter])
        await tx.execute(sql.DROP_VECTORS, places=places)
    if gone:
        await tx.execute(sql.DROP_TEXTS, ids=sorted(set(gone)))
    await tx.write(sql.ADD_TEXTS.of(sorted(texts)))


async def counts(tx: Tx) -> tuple[MemoryCountRow, MemoryCounterRow | None]:
    """Count the memory of the namespace."""
    consumers = [INDEX_CONSUMER, TOC_CONSUMER]
    row = await tx.one(sql.COUNTS, open=PENDING, consumers=consumers, failed=FAILED)
    assert row is not None
    return row, await get_counter(tx)
