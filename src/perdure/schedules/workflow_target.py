"""What schedules start: workflow runs, dispatched in the transaction that records the firing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from perdure.executions.model import PhaseStarter
from perdure.kernel.clock import to_iso
from perdure.kernel.errors import Conflict, InvalidInput, PerdureError
from perdure.kernel.storage.port import Tx
from perdure.schedules.job_target import build_origin
from perdure.schedules.model import FAILED, SUCCESS, FiringOutcome, FiringRequest
from perdure.workflows import sql
from perdure.workflows.hints import RUNS_CHANNEL, run_key
from perdure.workflows.model import LIVE, SUCCEEDED
from perdure.workflows.operations.dispatch import NewWorkflowRun, dispatch
from perdure.workflows.rows import WorkflowRunRow
from perdure.workflows.service import Workflows

WORKFLOW_FIELD: Final = "workflow"
CONTEXT_FIELD: Final = "context"
SCHEDULE_FIELD: Final = "schedule"
"""Where a run finds in its context which schedule started it, and when."""


class WorkflowTarget:
    """Dispatches workflows. A payload names the `workflow`, and has the `context` that its run gets."""

    name = "workflow"

    def __init__(self, workflows: Workflows, phases: PhaseStarter) -> None:
        self._workflows = workflows
        self._phases = phases

    def prepare(self, order: FiringRequest) -> NewWorkflowRun:
        """The run that an order asks for, checked and encoded."""
        workflow, context = order.payload.get(WORKFLOW_FIELD), order.payload.get(CONTEXT_FIELD, {})
        unknown = order.payload.keys() - {WORKFLOW_FIELD, CONTEXT_FIELD}
        if not isinstance(workflow, str) or not isinstance(context, Mapping) or unknown:
            raise InvalidInput(
                f"a schedule of workflows has a payload with {WORKFLOW_FIELD!r}, the name of a workflow, and"
                f" {CONTEXT_FIELD!r}, an object"
            )
        return self._workflows.request(
            workflow,
            context={**context, SCHEDULE_FIELD: build_origin(order)},
            trigger_id=f"cron:{order.name or order.schedule_id}:{to_iso(order.due_at)}",
            trigger_type="cron",
            timeout=order.timeout,
        )

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        """A workflow has no thread."""
        return None if thread_id is None else InvalidInput("a schedule of workflows has no thread")

    async def start(self, tx: Tx, prepared: Sequence[NewWorkflowRun]) -> Sequence[str | PerdureError]:
        """Dispatch the runs; answers each with its id, or that its workflow is switched off."""
        answers = await dispatch(tx, prepared, self._phases)
        return [
            answer
            if isinstance(answer, PerdureError)
            else answer.run_id or Conflict(f"Workflow {each.snapshot.name} is switched off")
            for answer, each in zip(answers, prepared, strict=True)
        ]

    async def find(self, tx: Tx, started: Sequence[str]) -> Mapping[str, WorkflowRunRow]:
        """Read runs."""
        return {row.id: row for row in await tx.all(sql.GET_RUNS, ids=list(started))}

    def outcome(self, found: WorkflowRunRow) -> FiringOutcome | None:
        """How a run has ended, or None while it has not."""
        if found.status in LIVE:
            return None
        duration = None if found.finished_at is None else max(found.finished_at - found.started_at, 0)
        if found.status == SUCCEEDED:
            return FiringOutcome(SUCCESS, duration)
        return FiringOutcome(FAILED, duration, found.error or found.status)

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        """The hint that a run has moved."""
        return RUNS_CHANNEL, run_key(ns, started_id)
