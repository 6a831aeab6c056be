"""Cancelling, pausing, resuming and retrying runs, at the wish of a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.executions.model import PhaseStarter
from perdure.kernel.errors import Conflict
from perdure.kernel.storage.port import Tx
from perdure.service.audit import audit
from perdure.service.callers import format_actor
from perdure.workflows import sql
from perdure.workflows.model import CANCELLED, FAILED, MAX_LIVE, NOT_ENDED, PAUSED, RUN, RUNNING
from perdure.workflows.operations.dispatch import lock_admission
from perdure.workflows.operations.runs import load_works, lock_runs, not_found
from perdure.workflows.operations.saving import save_all
from perdure.workflows.operations.work import RunWork
from perdure.workflows.rows import WorkflowRunRow

CHILDREN: Final = 1000


async def cancel(tx: Tx, run_id: str, reason: str | None, phases: PhaseStarter) -> str:
    """Cancel a run. Its phases, and the runs that it started, are stopped after that: see `due`."""
    work = await _locked(tx, run_id, phases)
    if not RUN.moves(work.run.status, "cancelled"):
        raise Conflict(f"Workflow run {run_id} has ended already: {work.run.status}")
    who = "" if tx.actor is None else f" by {format_actor(tx.actor)}"
    await work.stop("cancelled", reason or f"cancelled{who}")
    await save_all(tx, [work])
    await audit(tx, "cancel_workflow_run", [run_id])
    return work.run.status


async def _locked(tx: Tx, run_id: str, phases: PhaseStarter) -> RunWork:
    works = await load_works(tx, [run_id], phases)
    if run_id not in works:
        raise not_found(run_id)
    return works[run_id]


async def pause(tx: Tx, run_id: str, phases: PhaseStarter) -> str:
    """Start no more phases of a run until it is resumed. Those that are executed go on to their end."""
    work = await _locked(tx, run_id, phases)
    if work.run.status not in (RUNNING, PAUSED):
        raise Conflict(f"Workflow run {run_id} is {work.run.status}; only one that is running can be paused")
    work.run.held = 1
    await work.go_on()
    await save_all(tx, [work])
    await audit(tx, "pause_workflow_run", [run_id])
    return work.run.status


async def resume(tx: Tx, run_id: str, phases: PhaseStarter) -> str:
    """Let a run go on that was paused by `pause`."""
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
        return f"Workflow run {run.id} has ended: {run.status}. Retry it to go on where it stopped"
    if run.gates:
        return f"Workflow run {run.id} waits for a person: answer its approval to go on"
    return f"Workflow run {run.id} is {run.status}; only one that was paused can be resumed"


async def retry(tx: Tx, run_id: str, phases: PhaseStarter) -> str:
    """Try a run again that failed or was cancelled, with the runs that it started.

    It goes on at its first phases and iterations that are not done; what is done stays done. Phases of it
    that are still executed are stopped first, so that none is executed twice at once.
    """
    tree = await _failed_tree(tx, run_id)
    await _stop_phases(tx, tree, phases)
    works = await load_works(tx, tree, phases)
    if run_id not in works:
        raise not_found(run_id)
    run = works[run_id].run
    if not RUN.moves(run.status, "retried"):
        raise Conflict(
            f"Workflow run {run_id} is {run.status}; only one that failed or was cancelled can be retried"
        )
    twin = await tx.one(sql.LIVE_RUN, workflow_name=run.workflow_name, trigger_id=run.trigger_id)
    if twin is not None:
        raise Conflict(
            f"Workflow run {run_id} cannot be retried: run {twin.id} of the same workflow and trigger is live"
        )
    retried = [work for work in works.values() if RUN.moves(work.run.status, "retried")]
    for work in retried:
        _reopen(work.run)
    for work in retried:
        await work.retry()
    await save_all(tx, retried)
    await audit(tx, "retry_workflow_run", [run_id])
    return run.status


async def _stop_phases(tx: Tx, run_ids: Sequence[str], phases: PhaseStarter) -> None:
    """Stop what is still executed of runs that have ended. Phases and admission are locked before runs."""
    live = [
        each
        for run_id in run_ids
        for each in await tx.all(sql.LIVE_PHASES, run_id=run_id, statuses=sorted(NOT_ENDED), n=MAX_LIVE + 1)
    ]
    if len(live) > MAX_LIVE:
        raise Conflict("phases of this workflow run are still being stopped; try again")
    loaded = await phases.load(tx, live) if live else None
    # A dispatch of the same trigger makes a run that is live, too: only one of the two may.
    await lock_admission(tx)
    runs = await lock_runs(tx, run_ids)
    if loaded is not None and all(RUN.moves(run.status, "retried") for run in runs):
        await phases.cancel(tx, loaded)


def _reopen(run: WorkflowRunRow) -> None:
    run.status = RUN.step(run.status, "retried")
    run.finished_at = run.error = run.due_at = run.deadline_at = run.lost_workers = None
    run.active, run.restart_count = 1, 0


async def _failed_tree(tx: Tx, run_id: str) -> list[str]:
    """A run, and those that it started and that ended without success."""
    found = [run_id]
    level = [run_id]
    while level:
        rows = await tx.all(sql.CHILDREN, ids=level, statuses=[FAILED, CANCELLED], n=CHILDREN)
        level = [row.id for row in rows if row.id not in found]
        found += level
    return found
