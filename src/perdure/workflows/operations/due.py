"""Due work of runs, each action in its own transaction.

Waits end, the items of a map and other workflows start, a graph continues with an answer, phases that no node
waits for are stopped, a run gets the end of a run that it started, and queued runs expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from perdure.executions.model import PhaseStarter
from perdure.kernel.clock import to_seconds
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.port import Tx
from perdure.workflows import sql
from perdure.workflows.model import (
    LIVE,
    MAX_DEPTH,
    NOT_ENDED,
    PAUSED,
    RUN,
    RUNNING,
    SUCCEEDED,
    WAITING,
    NodeKey,
    parse_node,
)
from perdure.workflows.operations.dispatch import NewWorkflowRun, Parent, create_run, new_run
from perdure.workflows.operations.runs import build_works, load_plans, load_works, lock_run, lock_runs
from perdure.workflows.operations.saving import save_all
from perdure.workflows.operations.work import RunWork
from perdure.workflows.rows import DueNode, DueRun, WorkflowNodeRow, WorkflowOutputRow, WorkflowRunRow
from perdure.workflows.snapshots import Snapshot
from perdure.workflows.steps import Succeed, decode_state
from perdure.workflows.values import Stored

DUE_ROWS: Final = 100
STRAYS: Final = 500
CHILDREN: Final = 1000


async def due_runs(tx: Tx) -> list[DueRun]:
    """List some of the runs with work due, in all namespaces."""
    return await tx.all(sql.DUE_RUNS, n=DUE_ROWS)


async def due_nodes(tx: Tx) -> list[DueNode]:
    """List some of the due nodes, in all namespaces."""
    return await tx.all(sql.DUE_NODES, n=DUE_ROWS)


async def queued_namespaces(tx: Tx) -> list[int]:
    """List the namespaces with queued runs."""
    return await tx.all(sql.QUEUED_NAMESPACES)


async def until_next(tx: Tx) -> float | None:
    """Return the seconds until the next due time, or None if there is none."""
    times = [await tx.one(sql.NEXT_RUN), await tx.one(sql.NEXT_NODE)]
    due = [time for time in times if time is not None]
    return max(to_seconds(min(due) - tx.now), 0.0) if due else None


# --- runs -------------------------------------------------------------------------------------------------


async def expire(tx: Tx, run_id: str, phases: PhaseStarter) -> None:
    """Cancel a run that has waited in the queue for too long; fail a run whose timeout has passed."""
    works = await load_works(tx, [run_id], phases)
    for work in works.values():
        run = work.run
        is_late = run.deadline_at is not None and run.deadline_at <= tx.now
        late = f"timed out after {to_seconds((run.deadline_at or 0) - run.started_at):g} seconds"
        if is_late and RUN.moves(run.status, "failed"):
            await work.stop("failed", late)
            await save_all(tx, [work])
        elif RUN.moves(run.status, "expired") and run.due_at is not None and run.due_at <= tx.now:
            dropped = "dropped from the queue after waiting too long"
            await work.stop("expired", f"{late} in the queue" if is_late else dropped)
            run.due_at = None
            await save_all(tx, [work])


class Tended(NamedTuple):
    """Remaining work of a run: whether more phases must be stopped, and started runs to cancel."""

    more: bool
    children: Sequence[str]


async def stop_strays(tx: Tx, run_id: str, phases: PhaseStarter) -> Tended:
    """Stop phases of a run that no node waits for. Such a phase never belongs to a node again."""
    ids = await tx.all(sql.LIVE_PHASES, run_id=run_id, statuses=sorted(NOT_ENDED), n=STRAYS)
    held = set(await tx.all(sql.HELD_ROLLOUTS, run_id=run_id))
    strays = [rollout_id for rollout_id in ids if rollout_id not in held]
    loaded = await phases.load(tx, strays) if strays else None
    run = await lock_run(tx, run_id)
    if loaded is not None:
        await phases.cancel(tx, loaded)
    children: list[str] = []
    if run is not None and run.status not in LIVE:
        rows = await tx.all(sql.CHILDREN, ids=[run_id], statuses=list(LIVE), n=CHILDREN)
        children = [row.id for row in rows]
    return Tended(len(ids) == STRAYS and bool(strays), children)


async def clear_due(tx: Tx, run_id: str, due_at: int) -> None:
    """Clear the due work of a run, unless new work was requested meanwhile."""
    await lock_runs(tx, [run_id])
    await tx.execute(sql.TENDED, id=run_id, due_at=due_at)


async def tell_parent(tx: Tx, run_id: str, phases: PhaseStarter) -> bool:
    """Pass the end of a run to the run that started it. Lock both runs in the order of their ids."""
    rows = await tx.all(sql.GET_RUNS, ids=[run_id])
    parents = [row.parent_run_id for row in rows if row.parent_run_id is not None]
    works = await load_works(tx, [run_id, *parents], phases)
    child = works.get(run_id)
    parent = None if child is None else works.get(child.run.parent_run_id or "")
    if child is None or parent is None or child.is_live or not parent.is_live:
        return False
    node = await parent.node(parse_node(child.run.parent_node or ""))
    if node is None or node.status != WAITING or node.child_run_id != run_id:
        return False
    await _take_end(tx, parent, node, child.run)
    await parent.go_on()
    await save_all(tx, [parent])
    return True


async def _take_end(tx: Tx, parent: RunWork, node: WorkflowNodeRow, child: WorkflowRunRow) -> None:
    """Apply the end of a run started by a node. The run's last phase provides the output."""
    node.due_at = None
    if child.status == SUCCEEDED:
        output = await tx.one(sql.LAST_OUTPUT, run_id=child.id, status=SUCCEEDED)
        await parent.succeed(node, Succeed(f"workflow run {child.id}", output))
    else:
        await parent.fail(node, f"workflow run {child.id} {child.status}: {child.error or 'no reason given'}")


# --- nodes ------------------------------------------------------------------------------------------------


async def _waiting(
    tx: Tx, run_id: str, key: NodeKey, phases: PhaseStarter
) -> tuple[RunWork, WorkflowNodeRow] | None:
    """Return a due node of a live run, with its run locked."""
    works = await load_works(tx, [run_id], phases)
    work = works.get(run_id)
    node = None if work is None else await work.node(key)
    if work is None or node is None or node.due_at is None or node.due_at > tx.now:
        return None
    return (work, node) if work.run.status in (RUNNING, PAUSED) and node.status == WAITING else None


async def end_wait(tx: Tx, run_id: str, key: NodeKey, phases: PhaseStarter) -> bool:
    """End a wait that is due."""
    waiting = await _waiting(tx, run_id, key, phases)
    if waiting is None:
        return False
    work, node = waiting
    node.due_at = None
    await work.succeed(node, Succeed())
    await work.go_on()
    await save_all(tx, [work])
    return True


async def give_up(tx: Tx, run_id: str, key: NodeKey, error: str, phases: PhaseStarter) -> bool:
    """Fail a node if its items, context or answer could not be built."""
    waiting = await _waiting(tx, run_id, key, phases)
    if waiting is None:
        return False
    work, node = waiting
    node.due_at = None
    await work.fail(node, error)
    await work.go_on()
    await save_all(tx, [work])
    return True


class MapItem(msgspec.Struct, frozen=True):
    """An item of a map phase: a small value, or the id and JSON text of a large value."""

    value: Any = None
    output: str | None = None
    body: str | None = None


async def expand(tx: Tx, run_id: str, key: NodeKey, items: Sequence[MapItem], phases: PhaseStarter) -> bool:
    """Start the items of a map phase. If it was expanded before, retry the items that failed."""
    waiting = await _waiting(tx, run_id, key, phases)
    if waiting is None:
        return False
    work, node = waiting
    if decode_state(node).total:
        await work.expand_again(node)
    else:
        large = [(item.output, item.body) for item in items if item.output and item.body is not None]
        await tx.write(
            sql.ADD_OUTPUTS.of([WorkflowOutputRow(name, run_id, tx.now, body) for name, body in large])
        )
        await work.expand(node, [(item.value, item.output) for item in items])
    await work.go_on()
    await save_all(tx, [work])
    return True


async def start_child(tx: Tx, run_id: str, key: NodeKey, context: Stored, phases: PhaseStarter) -> bool:
    """Start the workflow of a node. If it was started before, wait for it or apply its end."""
    before = await tx.one(sql.GET_NODE, run_id=run_id, node=key.node, item=key.item)
    child_id = None if before is None else before.child_run_id
    runs = {run.id: run for run in await lock_runs(tx, [run_id, *([child_id] if child_id else [])])}
    waiting = await _waiting(tx, run_id, key, phases)
    if waiting is None:
        return False
    work, node = waiting
    child = runs.get(node.child_run_id or "")
    if child is not None and child.status in LIVE:
        node.due_at, node.dirty = None, True
    elif child is not None:
        await _take_end(tx, work, node, child)
    else:
        await _start_child(tx, work, node, context, phases)
    await work.go_on()
    await save_all(tx, [work])
    return True


async def _start_child(
    tx: Tx, work: RunWork, node: WorkflowNodeRow, context: Stored, phases: PhaseStarter
) -> None:
    run, name = work.run, work.plan[node.node].phase.workflow or ""
    if run.depth >= MAX_DEPTH:
        await work.fail(node, f"workflows start one another more than {MAX_DEPTH} deep")
        return
    request = NewWorkflowRun(
        snapshot=Snapshot(name, run.definition, ""),
        trigger_id=f"{run.id}/{node.key}",
        trigger_type=run.trigger_type,
        triggered_by=run.triggered_by,
        repo=run.repo,
        issue_number=run.issue_number,
        context=context,
        config=run.config,
        max_parallel=None,
        cap=0,
    )
    child = new_run(tx, request, "dispatched", Parent(run.id, str(node.key), run.depth + 1))
    plan = (await load_plans(tx, [child]))[child.id]
    child.max_parallel = plan.workflow.max_parallel
    await create_run(tx, child, context, plan, phases)
    node.child_run_id, node.due_at, node.dirty = child.id, None, True


async def enter_answer(tx: Tx, run_id: str, key: NodeKey, resume: str, phases: PhaseStarter) -> bool:
    """Continue a graph in its own thread with the answer to its question; `resume` is JSON.

    The line of the thread is locked before the run. If the run has changed meanwhile, raise Conflict.
    """
    before = await tx.one(sql.GET_NODE, run_id=run_id, node=key.node, item=key.item)
    rows = await tx.all(sql.GET_RUNS, ids=[run_id])
    if before is None or not rows:
        return False
    works = await build_works(tx, rows, phases)
    order = await works[run_id].answer_order(before, resume)
    answers = await phases.enter(tx, [order])
    waiting = await _waiting(tx, run_id, key, phases)
    work, node = waiting or (works[run_id], before)
    if waiting is None or node.state != before.state:
        raise Conflict(f"node {key} of workflow run {run_id} no longer waits for an answer")
    node.due_at = None
    for answer in answers:
        if isinstance(answer, NotFound):
            await work.fail(node, answer.message)
        else:
            work.answered(node, answer)
    await work.go_on()
    await save_all(tx, [work])
    return True
