"""Operations of maintenance: rebuild everything, compact the index."""

from __future__ import annotations

from perdure.jobs.model import JobWithRollout, NewJob
from perdure.jobs.operations import enqueue_jobs, get_jobs
from perdure.kernel.storage.port import Tx
from perdure.memory import sql
from perdure.memory.model import NewDocumentRow, build_document_range
from perdure.memory.nodes import AGAIN, built_again
from perdure.memory.operations.index import INDEX_ROWS, lock_counter
from perdure.memory.tables import TEXTS
from perdure.service.audit import audit

STALE_ROWS = 500


async def start_rebuild(tx: Tx, job: NewJob) -> JobWithRollout:
    """Enqueue the rebuild job, unless a rebuild job already waits; return the job."""
    (job_id,) = await enqueue_jobs(tx, [job])
    await audit(tx, "rebuild_memory", [job_id])
    (row,) = await get_jobs(tx, [job_id])
    return row


async def make_stale(tx: Tx) -> int:
    """Mark a batch of built nodes to be built again; return its size."""
    ids = await tx.all(sql.BUILT, again=AGAIN, limit=STALE_ROWS)
    if ids:
        rows = await tx.all(sql.LOCK_NODES, ids=sorted(ids))
        await tx.update_many(sql.SAVE_NODES, [built_again(row, tx.now) for row in rows])
    return len(ids)


async def next_event(tx: Tx, ms: int) -> int | None:
    """Return the time of the next event from a time on."""
    return await tx.one(sql.NEXT_EVENT, ms=ms)


async def last_place(tx: Tx) -> int:
    """Return the last place of the namespace."""
    assert tx.ns is not None
    counter = await tx.one(sql.GET_COUNTER)
    low, _ = build_document_range(tx.ns)
    return low if counter is None else counter.placed


async def index_again(tx: Tx, last: int) -> int:
    """Move a batch of documents, up to a place, to new places; return its size."""
    assert tx.ns is not None
    counter = await lock_counter(tx)
    low, _ = build_document_range(tx.ns)
    old = await tx.all(sql.PLACED_UNTIL, low=low, last=last, limit=INDEX_ROWS)
    if old:
        rows = [NewDocumentRow(row.id, counter.placed + number) for number, row in enumerate(old, 1)]
        await tx.update_many(sql.MOVE_PLACES, rows)
        await tx.execute(sql.DROP_VECTORS, places=[row.place for row in old])
        placed = counter.placed + len(rows)
        await tx.update_many(
            sql.COUNT, [counter._replace(placed=placed, embedded=max(counter.embedded, last))]
        )
    return len(old)


async def compact(tx: Tx) -> bool:
    """Merge some segments of the text index; return whether there are more."""
    assert TEXTS.full_text is not None
    return await tx.compact(TEXTS.full_text)
