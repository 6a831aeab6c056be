"""Retry runs that failed or were cancelled: where they stopped, or from a phase on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from perdure.executions.model import PhaseStarter
from perdure.kernel.errors import Conflict, InvalidInput
from perdure.kernel.storage.port import Tx
from perdure.service.audit import audit
from perdure.workflows import sql
from perdure.workflows.model import CANCELLED, FAILED, LIVE, MAX_LIVE, NOT_ENDED, RUN, parse_node
from perdure.workflows.operations.dispatch import lock_admission, store_definition
from perdure.workflows.operations.runs import load_works, lock_runs, not_found
from perdure.workflows.operations.saving import save_all
from perdure.workflows.operations.work import RunWork
from perdure.workflows.planner import WorkflowPlan
from perdure.workflows.rows import WorkflowRunRow
from perdure.workflows.snapshots import PLANS, Snapshot

CHILDREN: Final = 1000
SHOWN_PHASES: Final = 20
"""Maximum number of phases that an error names."""


async def retry(
    tx: Tx,
    run_id: str,
    phases: PhaseStarter,
    from_phase: str | None = None,
    current: Snapshot | None = None,
) -> str:
    """Retry a run that failed or was cancelled, with the runs that it started.

    It continues at its first phases and iterations that are not done. With `from_phase`, this phase and its
    dependents start again. With `current`, the run gets that definition. Phases that are still executed are
    stopped first, so that none is executed twice at once.
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
    anew: dict[str, set[str]] = {}
    retried: list[RunWork] = []
    plans = {} if current is None else await _store_plans(tx, current)
    for work in (works[id_] for id_ in tree if id_ in works):
        parent = work.run.parent_run_id or ""
        if not RUN.moves(work.run.status, "retried") or _is_replaced(work.run, parent, anew):
            # The phase that starts again replaces this run with a new run.
            anew[work.run.id] = set(work.plan.phases)
            continue
        if current is not None and work.run.workflow_name in plans:
            plan = plans[work.run.workflow_name]
            work, changed = await _with_definition(tx, work, current.digest, plan, phases)
            anew[work.run.id] = changed
        if from_phase is not None and work.run.id == run_id:
            anew[run_id] = anew.get(run_id, set()) | _from(work.plan, from_phase)
        await _check_stopped(tx, work.run.id, anew.get(work.run.id, set()))
        retried.append(work)
    for work in retried:
        _reopen(work.run)
    for work in retried:
        await work.retry(anew.get(work.run.id, ()))
    await save_all(tx, retried)
    await audit(tx, "retry_workflow_run", [run_id])
    return run.status


def _is_replaced(run: WorkflowRunRow, parent: str, anew: Mapping[str, Collection[str]]) -> bool:
    """Return whether a run was started by a phase that starts again."""
    return parse_node(run.parent_node or "").node in anew.get(parent, ())


def _from(plan: WorkflowPlan, name: str) -> set[str]:
    """Return a phase and its dependents."""
    if name not in plan.phases:
        names = ", ".join(list(plan.phases)[:SHOWN_PHASES])
        raise InvalidInput(f"workflow {plan.workflow.name!r} has no phase {name!r}; its phases are: {names}")
    return {name, *plan.after(name)}


async def _check_stopped(tx: Tx, run_id: str, names: Collection[str]) -> None:
    """Raise Conflict while a run started by one of the phases is live."""
    if not names:
        return
    for child in await tx.all(sql.CHILDREN, ids=[run_id], statuses=sorted(LIVE), n=CHILDREN):
        if parse_node(child.parent_node).node in names:
            raise Conflict(
                f"workflow run {child.id}, which a phase of {run_id} has started, is still being stopped; "
                "try again"
            )


# --- another definition -----------------------------------------------------------------------------------


async def _store_plans(tx: Tx, current: Snapshot) -> Mapping[str, WorkflowPlan]:
    """Store a definition and return its plans."""
    await store_definition(tx, current)
    plans = PLANS.get(current.digest)
    return PLANS.put(current.digest, current.body) if plans is None else plans


async def _with_definition(
    tx: Tx, work: RunWork, digest: str, plan: WorkflowPlan, phases: PhaseStarter
) -> tuple[RunWork, set[str]]:
    """Give a run another definition. Return its new work, and the changed phases that start again.

    A phase that is done stays done. Phases that the definition does not have are deleted; new phases are
    added.
    """
    run, old = work.run, work.plan
    if run.definition == digest:
        return work, set()
    await work.load_all()
    nodes = {node.node: node for node in work.board.nodes.values() if not node.item}
    gone = sorted(nodes.keys() - plan.phases.keys())
    if gone:
        await tx.execute(sql.DROP_PHASES, run_id=run.id, names=gone)
    kept = [node for name, node in nodes.items() if name in plan.phases]
    for node in kept:
        if node.position != plan[node.node].position:
            node.position = plan[node.node].position
            await tx.execute(sql.SET_POSITION, run_id=run.id, node=node.node, position=node.position)
    if run.max_parallel == old.workflow.max_parallel:
        run.max_parallel = plan.workflow.max_parallel
    run.definition = digest
    await tx.execute(sql.SET_DEFINITION, id=run.id, definition=digest, max_parallel=run.max_parallel)
    new = [node for node in plan.new_nodes(run.id) if node.node not in nodes]
    run.open_nodes += len(new)
    run.failed_nodes = sum(node.status == FAILED and plan[node.node].fails_run for node in kept)
    replaced = RunWork(tx, run, plan, phases)
    replaced.take_nodes(kept, new)
    changed = {node.node for node in kept if plan[node.node].phase != old[node.node].phase}
    return replaced, changed & replaced.board.unfinished()


# --- stopping and locking ---------------------------------------------------------------------------------


async def _stop_phases(tx: Tx, run_ids: Sequence[str], phases: PhaseStarter) -> None:
    """Stop phases of ended runs that are still executed. Phases and admission are locked before runs."""
    live = [
        rollout_id
        for run_id in run_ids
        for rollout_id in await tx.all(
            sql.LIVE_PHASES, run_id=run_id, statuses=sorted(NOT_ENDED), n=MAX_LIVE + 1
        )
    ]
    if len(live) > MAX_LIVE:
        raise Conflict("phases of this workflow run are still being stopped; try again")
    loaded = await phases.load(tx, live) if live else None
    # A dispatch of the same trigger also creates a live run, and a trigger may have only one live run.
    await lock_admission(tx)
    runs = await lock_runs(tx, run_ids)
    if loaded is not None and all(RUN.moves(run.status, "retried") for run in runs):
        await phases.cancel(tx, loaded)


def _reopen(run: WorkflowRunRow) -> None:
    run.status = RUN.step(run.status, "retried")
    run.finished_at = run.error = run.due_at = run.lost_workers = None
    run.active, run.restart_count = 1, 0


async def _failed_tree(tx: Tx, run_id: str) -> list[str]:
    """Return a run and the runs below it that ended without success."""
    tree = [run_id]
    level = [run_id]
    while level:
        rows = await tx.all(sql.CHILDREN, ids=level, statuses=[FAILED, CANCELLED], n=CHILDREN)
        level = [row.id for row in rows if row.id not in tree]
        tree += level
    return tree
