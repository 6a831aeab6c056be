"""Resume the run of an approval that was resolved."""

from __future__ import annotations

from perdure.approvals.model import ApprovalRow, Decision
from perdure.executions.model import PhaseStarter
from perdure.kernel.storage.port import Tx
from perdure.workflows.operations.advance import resume_node
from perdure.workflows.operations.runs import lock_run


class RunResumer:
    """`Resumer` of workflow runs: it locks the run before its approval."""

    def __init__(self, phases: PhaseStarter) -> None:
        self._phases = phases

    async def lock(self, tx: Tx, approval: ApprovalRow) -> bool:
        return await lock_run(tx, approval.workflow_run_id) is not None

    async def resume(self, tx: Tx, decision: Decision) -> None:
        run = await lock_run(tx, decision.workflow_run_id)
        if run is not None:
            await resume_node(tx, run, decision.node, decision, self._phases)
