"""Start runs, and admit queued runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from perdure.executions.model import PhaseStarter
from perdure.kernel import changes, ids
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import PerdureError
from perdure.kernel.storage.port import Tx
from perdure.service.audit import audit
from perdure.service.idempotency import keyed_as
from perdure.workflows import sql
from perdure.workflows.hints import CHANNEL, DUE, KIND
from perdure.workflows.model import PENDING, QUEUE_SECONDS, QUEUED, RUN, RUNNING
from perdure.workflows.operations.overrides import is_enabled
from perdure.workflows.operations.runs import load_plans, load_works
from perdure.workflows.operations.saving import build_counts, save_all
from perdure.workflows.operations.work import ALL, RunWork
from perdure.workflows.planner import WorkflowPlan
from perdure.workflows.rows import AdmissionRow, DefinitionRow, NewRunRow, WorkflowNodeRow, WorkflowOutputRow
from perdure.workflows.snapshots import PLANS, Snapshot
from perdure.workflows.tables import DEFINITIONS
from perdure.workflows.values import Stored

ADMIT_ROWS: Final = 100


class NewWorkflowRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to start, with encoded values."""

    snapshot: Snapshot
    trigger_id: str
    trigger_type: str
    triggered_by: str | None
    repo: str | None
    issue_number: int | None
    context: Stored
    config: str | None
    max_parallel: int | None
    cap: int
    """Maximum number of runs of the namespace that run at once."""
    timeout: float | None = None
    """Seconds after which the run fails if it has not ended, including its time in the queue."""


class Dispatched(NamedTuple):
    """Answer to a dispatch: the run, or None if the workflow is switched off."""

    run_id: str | None
    status: str | None
    reused: bool


class Parent(NamedTuple):
    """Node of a run that starts another run."""

    run_id: str
    node: str
    depth: int


@keyed_as("dispatch_workflow", Dispatched)
async def dispatch(
    tx: Tx, requests: Sequence[NewWorkflowRun], phases: PhaseStarter
) -> list[Dispatched | PerdureError]:
    """Start or enqueue each run, or return the live run of the same workflow and trigger.

    A workflow that is switched off starts nothing.
    """
    answers: list[Dispatched | PerdureError] = []
    locked = False
    for request in requests:
        if not await is_enabled(tx, request.snapshot.name):
            answers.append(Dispatched(None, None, False))
            continue
        if not locked:
            await lock_admission(tx)
            locked = True
        answers.append(await _dispatch(tx, request, phases))
    started = [answer.run_id for answer in answers if isinstance(answer, Dispatched) and not answer.reused]
    await audit(tx, "dispatch_workflow", [run_id for run_id in started if run_id is not None])
    return answers


async def lock_admission(tx: Tx) -> None:
    """Lock the admission of the namespace, so that its runs start one after another."""
    while not await tx.all(sql.LOCK_ADMISSION):
        await tx.write(sql.OPEN_ADMISSION.of([AdmissionRow(tx.now)]))


async def _dispatch(tx: Tx, request: NewWorkflowRun, phases: PhaseStarter) -> Dispatched:
    live = await tx.one(sql.LIVE_RUN, workflow_name=request.snapshot.name, trigger_id=request.trigger_id)
    if live is not None:
        return Dispatched(live.id, live.status, True)
    waits = bool(await tx.all(sql.QUEUED, n=1)) or await _is_full(tx, request.cap)
    run = new_run(tx, request, "enqueued" if waits else "dispatched")
    await store_definition(tx, request.snapshot)
    await create_run(tx, run, request.context, (await load_plans(tx, [run]))[run.id], phases)
    return Dispatched(run.id, run.status, False)


async def _is_full(tx: Tx, cap: int) -> bool:
    return (await tx.one(sql.RUNNING, running=RUNNING, cap=cap) or 0) >= cap


async def store_definition(tx: Tx, snapshot: Snapshot) -> None:
    """Store a definition unless it is stored already."""
    if await tx.existing(DEFINITIONS, [(tx.ns, snapshot.digest)]):
        return
    row = DefinitionRow(snapshot.digest, snapshot.name, tx.now, snapshot.body)
    await tx.write(sql.ADD_DEFINITIONS.of([row]))
    PLANS.put(snapshot.digest, snapshot.body)


def new_run(tx: Tx, request: NewWorkflowRun, event: str, parent: Parent | None = None) -> NewRunRow:
    """Build the row of a run that starts now or is queued."""
    status = RUN.start[event]
    waits = status == QUEUED
    deadline = None if request.timeout is None else tx.now + to_micros(request.timeout)
    dropped = tx.now + to_micros(QUEUE_SECONDS)
    return NewRunRow(
        id=ids.uuid(tx.now, tx.ids),
        workflow_name=request.snapshot.name,
        trigger_id=request.trigger_id,
        repo=request.repo,
        issue_number=request.issue_number,
        current_phase="",
        status=status,
        restart_count=0,
        started_at=tx.now,
        updated_at=tx.now,
        finished_at=None,
        active=1,
        definition=request.snapshot.digest,
        trigger_type=request.trigger_type,
        triggered_by=request.triggered_by,
        parent_run_id=None if parent is None else parent.run_id,
        parent_node=None if parent is None else parent.node,
        depth=0 if parent is None else parent.depth,
        max_parallel=request.max_parallel,
        held=None,
        queued_at=tx.now if waits else None,
        admitted_at=None if waits else tx.now,
        due_at=min(dropped, deadline or dropped) if waits else deadline,
        deadline_at=deadline,
        open_nodes=0,
        failed_nodes=0,
        ready_nodes=0,
        running_nodes=0,
        waiting_nodes=0,
        gates=0,
        history=0,
        total_cost_usd=0.0,
        total_tokens=0,
        turns=0,
        succeeded=0,
        skipped=0,
        deferred=0,
        failed=0,
        lost_workers=None,
        config=request.config,
        error=None,
        context=request.context.text,
    )


async def create_run(
    tx: Tx, run: NewRunRow, context: Stored, plan: WorkflowPlan, phases: PhaseStarter
) -> None:
    """Insert a run with its nodes, and begin it unless it is queued."""
    run.current_phase = plan.first_phase
    nodes = plan.new_nodes(run.id)
    run.open_nodes = len(nodes)
    await tx.write(sql.ADD_RUNS.of([run]))
    large = [WorkflowOutputRow(name, run.id, tx.now, body) for name, body in context.large]
    await tx.write(sql.ADD_NODES.of(nodes), sql.ADD_OUTPUTS.of(large), build_counts(tx, [run], new=True))
    changes.tell(tx, KIND, [(run.id, run.status)])
    if run.status == RUNNING:
        work = RunWork(tx, run, plan, phases)
        await work.begin(nodes)
        await save_all(tx, [work])
    tx.hint(CHANNEL, DUE)


async def admit(tx: Tx, cap: int, phases: PhaseStarter) -> int:
    """Start as many runs as the limit allows, the longest wait first. Return their number."""
    waiting = await tx.all(sql.QUEUED, n=1)
    if not waiting:
        return 0
    await lock_admission(tx)
    room = cap - (await tx.one(sql.RUNNING, running=RUNNING, cap=cap) or 0)
    if room <= 0:
        return 0
    works = await load_works(tx, await tx.all(sql.QUEUED, n=min(room, ADMIT_ROWS)), phases)
    admitted = [work for work in works.values() if RUN.moves(work.run.status, "admitted")]
    for work in admitted:
        run = work.run
        run.status = RUN.step(run.status, "admitted")
        run.queued_at, run.admitted_at, run.due_at = None, tx.now, run.deadline_at
        nodes: list[WorkflowNodeRow] = await tx.all(sql.GET_IN_STATUS, run_id=run.id, status=PENDING, n=ALL)
        await work.begin(nodes)
    await save_all(tx, admitted)
    return len(admitted)
