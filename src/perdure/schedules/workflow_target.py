"""Schedule target: workflow runs, dispatched in the transaction that records the firing."""

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
"""Key of a run's context for its schedule and time."""


class WorkflowTarget:
    """Dispatch workflows. A payload names the `workflow`, and has the `context` of its run."""

    name = "workflow"

    def __init__(self, workflows: Workflows, phases: PhaseStarter) -> None:
        self._workflows = workflows
        self._phases = phases

    def prepare(self, order: FiringRequest) -> NewWorkflowRun:
        """Build the workflow run of a request, checked and encoded."""
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
        """Refuse a thread, which a workflow cannot have."""
        return None if thread_id is None else InvalidInput("a schedule of workflows has no thread")

    async def start(self, tx: Tx, prepared: Sequence[NewWorkflowRun]) -> Sequence[str | PerdureError]:
        """Dispatch the runs; return an id for each, or the error that its workflow is disabled."""
        answers = await dispatch(tx, prepared, self._phases)
        return [
            answer
            if isinstance(answer, PerdureError)
            else answer.run_id or Conflict(f"Workflow {run.snapshot.name} is switched off")
            for answer, run in zip(answers, prepared, strict=True)
        ]

    async def find(self, tx: Tx, started: Sequence[str]) -> Mapping[str, WorkflowRunRow]:
        """Return the existing runs."""
        return {row.id: row for row in await tx.all(sql.GET_RUNS, ids=list(started))}

    def outcome(self, run: WorkflowRunRow) -> FiringOutcome | None:
        """Return the outcome of a run; None while it has not ended."""
        if run.status in LIVE:
            return None
        duration = None if run.finished_at is None else max(run.finished_at - run.started_at, 0)
        if run.status == SUCCEEDED:
            return FiringOutcome(SUCCESS, duration)
        return FiringOutcome(FAILED, duration, run.error or run.status)

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        """Return the hint for a change of a run."""
        return RUNS_CHANNEL, run_key(ns, started_id)
