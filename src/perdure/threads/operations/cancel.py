"""Cancelling runs."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.executions.model import PHASE
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import CANCELLED, ENDED, LIVE, Kinds, set_to
from perdure.rollouts.operations.conditions import NOT_OVERDUE
from perdure.rollouts.operations.report import save_all
from perdure.rollouts.operations.work import LockedRollouts, RolloutRow
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.service.audit import audit
from perdure.service.conditions import requires
from perdure.threads import sql
from perdure.threads.model import RUN, run_status
from perdure.threads.operations.settle import RunEndReport
from perdure.threads.records import CancelAction

CONTROL_CHANNEL = "threads.control"
MANY = 1000


def control_key(ns: int | None, run_id: str) -> str:
    """Build the key of the hint that a run is asked to stop."""
    return str(ns) + "/" + run_id


@requires(NOT_OVERDUE)
async def cancel_runs(
    tx: Tx, run_ids: Sequence[str], action: CancelAction, grace: int, kinds: Kinds
) -> list[str | NotFound | Conflict]:
    """End each run now. Its worker has `grace` microseconds to stop, and holds the line until then."""
    runs = [run for run in await tx.all(sql.GET_RUNS, ids=list(run_ids)) if run.gone_at is None]
    own = {run.id for run in runs if run.kind == RUN}
    phases = {run.id: run.parent for run in runs if run.kind == PHASE}
    work = LockedRollouts(tx, kinds)
    await work.load([run_id for run_id in run_ids if run_id in own], [RUN], lined=True)
    answers: list[str | NotFound | Conflict] = []
    for run_id in run_ids:
        rollout = work.rollouts.get(run_id)
        if run_id in phases:
            answers.append(refuse_phase(run_id, phases[run_id]))
        elif rollout is None:
            answers.append(NotFound(f"Run {run_id} not found"))
        elif rollout.status in ENDED:
            status = run_status(rollout.status, rollout.outcome)
            answers.append(Conflict(f"Run {run_id} has ended already: {status}"))
        else:
            await end_now(work, rollout, action, grace)
            answers.append(run_id)
    await save_all(work, WorkerChanges(tx), True)
    await audit(tx, "cancel_run", [answer for answer in answers if isinstance(answer, str)])
    return answers


def refuse_phase(run_id: str, parent: str | None) -> Conflict:
    """Build the error for a caller that cancels or deletes a phase as a run."""
    where = "a chat" if parent is None else f"workflow run {parent}: cancel that"
    return Conflict(f"Run {run_id} is a phase of {where}")


async def end_now(work: LockedRollouts, rollout: RolloutRow, action: CancelAction, grace: int) -> None:
    """End a run. If a worker executes it, its attempt and its line stay until the worker has stopped."""
    work.move(rollout, set_to(CANCELLED))
    rollout.outcome = action
    attempt = work.latest(rollout.id)
    executed = attempt is not None and attempt.status in LIVE
    work.reports[rollout.id] = RunEndReport(executed=executed)
    if attempt is not None and executed:
        release_by = work.tx.now + grace
        attempt.check_at, attempt.dirty = release_by, True
        await work.tx.execute(sql.RELEASE_BY, line=rollout.line, time=release_by)
        work.tx.hint(CONTROL_CHANNEL, control_key(work.tx.ns, rollout.id))


async def find_live(
    tx: Tx, thread_id: str | None, run_ids: Sequence[str] | None, statuses: Sequence[str]
) -> list[str]:
    """List live runs with one of the rollout statuses: runs of a thread, runs with given IDs, or all runs."""
    if run_ids is not None:
        candidates = list(run_ids)
    elif thread_id is not None:
        candidates = [row.id for row in await tx.all(sql.LIVE_RUNS, thread_ids=[thread_id])]
    else:
        return await tx.all(sql.LIVE_ANYWHERE, kind=RUN, statuses=list(statuses), n=MANY)
    runs = await tx.all(sql.GET_RUNS, ids=candidates)
    kept = {run.id for run in runs if run.rollout_status in statuses and thread_id in (None, run.thread_id)}
    return [run_id for run_id in candidates if run_id in kept]
