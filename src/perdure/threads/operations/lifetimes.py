"""Lifetimes of threads, and pruning."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.checkpoints.operations import prune as prune_graphs
from perdure.kernel.clock import to_seconds
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import Kinds
from perdure.rollouts.operations.lines import lock_lines
from perdure.service.audit import audit
from perdure.threads import sql
from perdure.threads.model import OF_PHASES
from perdure.threads.operations.remove import remove_thread
from perdure.threads.operations.settle import load_threads
from perdure.threads.operations.shown import store_earlier_states
from perdure.threads.records import Lifetime, PruneStrategy
from perdure.threads.rows import LifetimeRow, ThreadRow

MINUTE = 60_000_000
SWEEP_ROWS = 100
POSTPONED = MINUTE
"""Delay after which the lifetime of a busy thread is checked again."""


async def set_lifetimes(tx: Tx, lifetimes: dict[str, Lifetime]) -> None:
    """Set lifetimes that start now."""
    if not lifetimes:
        return
    await drop_lifetimes(tx, list(lifetimes))
    rows = [
        LifetimeRow(thread_id, tx.now + _length(lifetime), _length(lifetime), lifetime.strategy)
        for thread_id, lifetime in lifetimes.items()
    ]
    await tx.write(sql.ADD_LIFETIMES.of(rows))


def _length(lifetime: Lifetime) -> int:
    return round(lifetime.minutes * MINUTE)


async def drop_lifetimes(tx: Tx, thread_ids: Sequence[str]) -> None:
    await tx.execute(sql.DROP_LIFETIMES, ids=list(thread_ids))


async def get_lifetime(tx: Tx, thread_id: str) -> Lifetime | None:
    row = await tx.one(sql.GET_LIFETIMES, ids=[thread_id])
    if row is None:
        return None
    return Lifetime(minutes=row.length / MINUTE, strategy=row.strategy, expires_at=to_seconds(row.expires_at))


# --- pruning ----------------------------------------------------------------------------------------------


async def prune_threads(
    tx: Tx, thread_ids: Sequence[str], strategy: PruneStrategy, grace: int, kinds: Kinds
) -> list[str]:
    """Prune threads in the caller's name; return the IDs of the pruned threads."""
    pruned = await prune(tx, thread_ids, strategy, grace, kinds)
    await audit(tx, "prune_thread", pruned)
    return pruned


async def prune(
    tx: Tx, thread_ids: Sequence[str], strategy: PruneStrategy, grace: int, kinds: Kinds
) -> list[str]:
    """Remove threads, or all states of a thread except the latest; return the IDs of the pruned threads.

    A busy thread is removed with its runs, but keeps its states otherwise.
    """
    wanted = sorted(set(thread_ids))
    await lock_lines(tx, wanted)
    threads = await load_threads(tx, wanted, lock=True)
    pruned = [thread for thread in threads.values() if not thread.is_gone and thread.temporary != OF_PHASES]
    if strategy == "delete":
        for thread in pruned:
            await remove_thread(tx, thread.id, grace, kinds)
    else:
        pruned = [thread for thread in pruned if thread.status != "busy"]
        await _keep_latest(tx, pruned)
    return [thread.id for thread in pruned]


async def _keep_latest(tx: Tx, threads: Sequence[ThreadRow]) -> None:
    for thread in threads:
        if thread.checkpoint_id is not None:
            await store_earlier_states(tx, thread.id, thread.checkpoint_id)
            await tx.execute(sql.DROP_EARLIER, thread_id=thread.id, id=thread.checkpoint_id)
    await prune_graphs(tx, [thread.id for thread in threads], "keep_latest")


async def sweep(tx: Tx, grace: int, kinds: Kinds) -> int:
    """Expire the threads with an ended lifetime, in all namespaces."""
    due = await tx.all(sql.DUE_LIFETIMES, n=SWEEP_ROWS)
    here = tx.ns
    try:
        for ns in sorted({row.ns for row in due}):
            tx.ns = ns
            await _expire(tx, sorted(row.id for row in due if row.ns == ns), grace, kinds)
    finally:
        tx.ns = here
    return len(due)


async def _expire(tx: Tx, thread_ids: Sequence[str], grace: int, kinds: Kinds) -> None:
    await lock_lines(tx, thread_ids)
    threads = await load_threads(tx, thread_ids, lock=True)
    rows = [row for row in await tx.all(sql.GET_LIFETIMES, ids=list(thread_ids)) if row.expires_at <= tx.now]
    for row in rows:
        thread = threads.get(row.thread_id)
        if thread is None or thread.is_gone:
            await drop_lifetimes(tx, [row.thread_id])
        elif thread.status == "busy":
            await tx.execute(sql.POSTPONE_LIFETIME, thread_id=thread.id, time=tx.now + POSTPONED)
        else:
            await prune(tx, [thread.id], row.strategy, grace, kinds)
            if row.strategy == "delete":
                await drop_lifetimes(tx, [thread.id])
            else:
                await tx.execute(sql.POSTPONE_LIFETIME, thread_id=thread.id, time=tx.now + row.length)
