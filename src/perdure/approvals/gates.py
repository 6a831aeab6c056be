"""Gates: approvals that are requested when a run pauses, and withdrawn when it is cancelled.

Both are parts of a larger operation that has locked the run and its nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.approvals import sql
from perdure.approvals.model import ApprovalRow, GatedRun, NewGate, new_row
from perdure.kernel import changes, ids
from perdure.kernel.storage.port import Tx
from perdure.outbox.operations import NewEffect
from perdure.outbox.operations import put as put_effects
from perdure.service.callers import format_actor

KIND: Final = "approval"
CHANNEL: Final = "approvals"
ANY: Final = "any"
"""Only key of the channel: an approval was requested or resolved."""
CONSUMER: Final = "approval"
"""Outbox consumer that sends approval webhooks."""
REQUESTED: Final = "approval.requested"
REMINDER: Final = "approval.reminder"
RESOLVED: Final = "approval.resolved"


async def open_gate(tx: Tx, run: GatedRun, node: str, gate: NewGate) -> str:
    """Request an approval for a node of a run. Return its id."""
    row = new_row(ids.uuid(tx.now, tx.ids), run, node, gate, tx.now)
    await tx.write(sql.ADD.of([row]))
    await tell(tx, [row], REQUESTED)
    return row.id


async def withdraw_gates(tx: Tx, run_ids: Sequence[str]) -> int:
    """Withdraw the open approvals of cancelled runs. Return their number."""
    if not run_ids:
        return 0
    rows = await tx.all(sql.LOCK_OPEN_OF_RUNS, run_ids=list(run_ids))
    for row in rows:
        row.resolve("withdrawn", tx.now, None, format_actor(tx.actor))
    if rows:
        await tx.update_many(sql.MOVE, rows)
        await tell(tx, rows, RESOLVED)
    return len(rows)


async def tell(tx: Tx, rows: Sequence[ApprovalRow], event: str) -> None:
    """Publish changes of approvals: to the outbox, the change feed and waiting processes."""
    # The notice has no content: the approval is read at delivery.
    body = f'{{"event": "{event}", "ns": {tx.ns}}}'
    await put_effects(tx, [NewEffect(CONSUMER, row.id, body) for row in rows])
    changes.tell(tx, KIND, [(row.id, row.status) for row in rows])
    tx.hint(CHANNEL, ANY)
