"""Holds: paused queues and drained workers. Claims skip them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from perdure.kernel import changes
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts import hold_sql, sql, tables
from perdure.rollouts.hold_sql import HoldRow
from perdure.rollouts.operations.work import READY_CHANNEL, ready_key
from perdure.service.audit import audit

HoldKind = Literal["queue", "worker"]
QUEUE: Final = "queue"
WORKER: Final = "worker"
MOST_AGENTS = 1000
"""Maximum number of agents with workers to wake when a queue is resumed; other workers poll."""


async def holds(tx: Tx) -> list[HoldRow]:
    """Return the holds of a namespace. A probe saves the read if the database has none."""
    return await tx.all(hold_sql.LIST_HOLDS) if await tx.probe(tables.HELD) else []


def held(rows: Sequence[HoldRow], kind: HoldKind) -> dict[str, int]:
    """Return the names of a kind's holds with their times."""
    return {row.name: row.since for row in rows if row.kind == kind}


async def pause_queue(tx: Tx, queue: str) -> int:
    """Pause a queue; return since when. A paused queue keeps its time."""
    if await _hold(tx, QUEUE, queue):
        await audit(tx, "pause_queue", [queue])
        changes.tell(tx, "queue", [(queue, "paused")])
    return held(await tx.all(hold_sql.LIST_HOLDS), QUEUE)[queue]


async def resume_queue(tx: Tx, queue: str) -> bool:
    """Resume a queue; return whether it was paused."""
    if not await tx.execute(hold_sql.DROP_HOLD, kind=QUEUE, name=queue):
        return False
    await audit(tx, "resume_queue", [queue])
    tx.hint(READY_CHANNEL, ready_key(queue, None))
    for agent in await tx.all(hold_sql.READY_AGENTS, queue=queue, n=MOST_AGENTS):
        tx.hint(READY_CHANNEL, ready_key(queue, agent))
    changes.tell(tx, "queue", [(queue, "resumed")])
    return True


async def drain_worker(tx: Tx, worker_id: str) -> None:
    """Drain a worker: it claims nothing more until it registers again, and finishes its attempts."""
    await _check_worker(tx, worker_id)
    if await _hold(tx, WORKER, worker_id):
        await audit(tx, "drain_worker", [worker_id])
        changes.tell(tx, "worker", [(worker_id, "draining")])


async def undrain_worker(tx: Tx, worker_id: str) -> None:
    """Let a worker claim again."""
    await _check_worker(tx, worker_id)
    if await tx.execute(hold_sql.DROP_HOLD, kind=WORKER, name=worker_id):
        await audit(tx, "undrain_worker", [worker_id])
        changes.tell(tx, "worker", [(worker_id, "claims again")])


async def _check_worker(tx: Tx, worker_id: str) -> None:
    if not await tx.all(sql.GET_WORKERS, ids=[worker_id]):
        raise NotFound(f"Worker {worker_id} not found")


async def _hold(tx: Tx, kind: HoldKind, name: str) -> bool:
    """Insert a hold; return whether it is new."""
    return bool(await tx.insert_new(hold_sql.ADD_HOLDS, [HoldRow(kind, name, tx.now)]))
