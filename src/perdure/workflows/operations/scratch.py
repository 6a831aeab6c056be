"""The scratch of a run: values that its phases and callers share."""

from __future__ import annotations

from perdure.kernel.storage.port import Tx
from perdure.service.audit import audit
from perdure.workflows import sql
from perdure.workflows.operations.runs import lock_run, not_found
from perdure.workflows.rows import WorkflowOutputRow
from perdure.workflows.values import Stored, decode_scratch, scratch_text


async def update(tx: Tx, run_id: str, patch: Stored) -> None:
    """Set values of a run's scratch by key; other keys do not change.

    The scratch is limited in size, so it may be decoded here.
    """
    if await lock_run(tx, run_id) is None:
        raise not_found(run_id)
    row = await tx.one(sql.GET_VALUES, ids=[run_id])
    merged = {**decode_scratch(None if row is None else row.scratch), **decode_scratch(patch.text)}
    text = scratch_text(merged, run_id)
    await tx.write(
        sql.ADD_OUTPUTS.of([WorkflowOutputRow(name, run_id, tx.now, body) for name, body in patch.large])
    )
    await tx.execute(sql.SET_SCRATCH, id=run_id, scratch=text)
    await audit(tx, "update_scratch", [run_id])
