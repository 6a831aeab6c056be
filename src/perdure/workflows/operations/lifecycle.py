"""Cancel, pause and resume runs on request of a person."""

from __future__ import annotations

from perdure.executions.model import PhaseStarter
from perdure.kernel.errors import Conflict
from perdure.kernel.storage.port import Tx
from perdure.service.audit import audit
from perdure.service.callers import format_actor
from perdure.workflows.model import CANCELLED, FAILED, PAUSED, RUN, RUNNING
from perdure.workflows.operations.runs import load_works, not_found
from perdure.workflows.operations.saving import save_all
from perdure.workflows.operations.work import RunWork
from perdure.workflows.rows import WorkflowRunRow


async def cancel(tx: Tx, run_id: str, reason: str | None, phases: PhaseStarter) -> str:
    """Cancel a run. Its phases and the runs that it started are stopped afterwards: see `due`."""
    work = await _locked(tx, run_id, phases)
    if not RUN.moves(work.run.status, "cancelled"):
        raise Conflict(f"Workflow run {run_id} has ended already: {work.run.status}")
    by = "" if tx.actor is None else f" by {format_actor(tx.actor)}"
    await work.stop("cancelled", reason or f"cancelled{by}")
    await save_all(tx, [work])
    await audit(tx, "cancel_workflow_run", [run_id])
    return work.run.status


async def _locked(tx: Tx, run_id: str, phases: PhaseStarter) -> RunWork:
    works = await load_works(tx, [run_id], phases)
    if run_id not in works:
        raise not_found(run_id)
    return works[run_id]


async def pause(tx: Tx, run_id: str, phases: PhaseStarter) -> str:
    """Start no more phases of a run until it is resumed. Phases that are being executed continue."""
    work = await _locked(tx, run_id, phases)
    if work.run.status not in (RUNNING, PAUSED):
        raise Conflict(f"Workflow run {run_id} is {work.run.status}; only one that is running can be paused")
    work.run.held = 1
    await work.go_on()
    await save_all(tx, [work])
    await audit(tx, "pause_workflow_run", [run_id])
    return work.run.status


async def resume(tx: Tx, run_id: str, phases: PhaseStarter) -> str:
    """Continue a run that was paused by `pause`."""
    work = await _locked(tx, run_id, phases)
    if not work.run.held:
        raise Conflict(_cannot_resume(work.run))
    work.run.held = None
    await work.go_on()
    await save_all(tx, [work])
    await audit(tx, "resume_workflow_run", [run_id])
    return work.run.status


def _cannot_resume(run: WorkflowRunRow) -> str:
    if run.status in (FAILED, CANCELLED):
        return f"Workflow run {run.id} has ended: {run.status}. Retry it to continue where it stopped"
    if run.gates:
        return f"Workflow run {run.id} waits for a person: answer its approval to continue"
    return f"Workflow run {run.id} is {run.status}; only one that was paused can be resumed"
