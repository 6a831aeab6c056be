"""Lock and read runs with their plans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.executions.model import PhaseStarter
from perdure.kernel.errors import NotADatabase, NotFound
from perdure.kernel.storage.port import Tx
from perdure.workflows import sql
from perdure.workflows.operations.work import RunWork
from perdure.workflows.planner import WorkflowPlan
from perdure.workflows.rows import WorkflowRunRow
from perdure.workflows.snapshots import PLANS


async def lock_run(tx: Tx, run_id: str) -> WorkflowRunRow | None:
    """Lock a run. Return None if it does not exist."""
    return await tx.one(sql.LOCK_RUNS, ids=[run_id])


async def lock_runs(tx: Tx, run_ids: Iterable[str]) -> list[WorkflowRunRow]:
    """Lock runs in the order of their ids."""
    wanted = sorted(set(run_ids))
    return await tx.all(sql.LOCK_RUNS, ids=wanted) if wanted else []


async def load_plans(tx: Tx, runs: Sequence[WorkflowRunRow]) -> dict[str, WorkflowPlan]:
    """Return the plan of each run, by run id."""
    digests = {run.definition for run in runs}
    plans = {digest: cached for digest in digests if (cached := PLANS.get(digest)) is not None}
    missing = sorted(digests - plans.keys())
    if missing:
        for row in await tx.all(sql.GET_DEFINITIONS, digests=missing):
            plans[row.digest] = PLANS.put(row.digest, row.body)
    try:
        return {run.id: plans[run.definition][run.workflow_name] for run in runs}
    except KeyError as error:
        raise NotADatabase(f"the definition of a workflow run is missing: {error}") from None


async def load_works(tx: Tx, run_ids: Iterable[str], phases: PhaseStarter) -> dict[str, RunWork]:
    """Lock runs to work on them. Runs that do not exist are left out."""
    runs = await lock_runs(tx, run_ids)
    return await build_works(tx, runs, phases)


async def build_works(tx: Tx, runs: Sequence[WorkflowRunRow], phases: PhaseStarter) -> dict[str, RunWork]:
    """Return the units of work of locked runs."""
    plans = await load_plans(tx, runs) if runs else {}
    return {run.id: RunWork(tx, run, plans[run.id], phases) for run in runs}


def not_found(run_id: str) -> NotFound:
    return NotFound(f"Workflow run {run_id} not found")
