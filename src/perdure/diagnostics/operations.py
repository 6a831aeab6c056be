"""Reads of the rows behind an explanation in one transaction. Only rows needed for the status are read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from perdure.approvals import sql as approval_sql
from perdure.approvals.model import ApprovalRow
from perdure.diagnostics import sql
from perdure.diagnostics.explain import MANY
from perdure.diagnostics.model import (
    AuditMatch,
    DiagnosedAttemptRow,
    DiagnosedRolloutRow,
    LineFacts,
    OpenApprovalsRow,
    RolloutRows,
    ThreadRows,
    WorkerRows,
)
from perdure.diagnostics.path import MOST_ATTEMPTS, PathRows, Requeue, count_tries, goes_again
from perdure.diagnostics.totals import ThreadTotals
from perdure.diagnostics.workflow_explain import WorkflowRunRows
from perdure.graph_requests.model import GRAPH_REQUEST
from perdure.graph_requests.operations import get_request
from perdure.kernel.storage.filters import given
from perdure.kernel.storage.port import Tx
from perdure.outbox.model import DEAD, PENDING
from perdure.outbox.operations import list_effects
from perdure.rollouts.model import CANCELLED, ENDED, LIVE, QUEUED, Kinds, decode_limits
from perdure.rollouts.operations.conditions import NOT_OVERDUE
from perdure.rollouts.operations.holds import QUEUE, WORKER, held, holds
from perdure.rollouts.operations.overview import Depth, queues_here
from perdure.schedules.operations.queries import find as find_schedule
from perdure.schedules.rows import ScheduleRow
from perdure.service.conditions import requires
from perdure.service.namespaces import list_namespaces
from perdure.threads.model import RUN, RUN_KINDS
from perdure.threads.operations.queries import QueueStats, check_thread
from perdure.threads.operations.queries import stats as queue_stats
from perdure.threads.operations.settle import load_runs, load_threads
from perdure.threads.rows import RunRow, ThreadRow
from perdure.workflows import sql as workflow_sql
from perdure.workflows.model import ENDED as WORKFLOW_ENDED
from perdure.workflows.model import RUNNING, WAITING

STOPPING = ("interrupt", "rollback")
CANCELLING = ("cancel_run", "delete_run", "delete_thread", "create_run", "update_rollout")
A_MOMENT = 1000
"""Limit of microseconds between a change and its entry in the audit."""
AUDIT_ENTRIES = 50
CREATING = ("enqueue_rollout", "start_rollout", "create_run", "dispatch_workflow", "trigger_schedule")
CHANGING, STARTING = "update_rollout", "start_attempt"
SEARCHED_ENTRIES = 1000
"""Number of audit entries searched for a requeue of a rollout."""
FIRST_SPANS = 1000
"""Number of spans of an attempt that are read to find when the first began."""
MOST_WORKERS = 1000
MOST_NODES = 20
"""Limit of phases and approvals of a workflow run that are read."""


class ObjectMatch(NamedTuple):
    """An object with an id. `now` is the database's time."""

    now: int
    subject: RolloutRows | ThreadRows | WorkflowRunRows | ApprovalRow | ScheduleRow | None


async def find(tx: Tx, id: str) -> ObjectMatch:
    """Return the object with an id: a rollout or run, a thread, a workflow run, an approval or a schedule."""
    rollout = await _find_rollout(tx, id)
    if rollout is not None:
        return ObjectMatch(tx.now, rollout)
    thread = (await load_threads(tx, [id])).get(id)
    if thread is not None:
        return ObjectMatch(tx.now, await _find_thread(tx, thread))
    workflow_run = await _find_workflow_run(tx, id)
    if workflow_run is not None:
        return ObjectMatch(tx.now, workflow_run)
    approval = await tx.one(approval_sql.GET, id=id)
    if approval is not None:
        return ObjectMatch(tx.now, approval)
    return ObjectMatch(tx.wall, await find_schedule(tx, id))


async def _find_rollout(tx: Tx, id: str) -> RolloutRows | None:
    row = await tx.one(sql.GET_ROLLOUT, id=id)
    if row is None:
        return None
    run = (await load_runs(tx, [id])).get(id) if row.kind in RUN_KINDS else None
    request = await get_request(tx, id) if row.kind == GRAPH_REQUEST else None
    line, ahead, paused, workers, audit = None, 0, None, WorkerRows(), None
    if row.status in ENDED:
        audit = await _find_end(tx, row, run)
    elif row.status in QUEUED and row.behind is not None and row.line is not None:
        line = await _find_line(tx, row.line, row.priority, row.behind)
    elif row.status in QUEUED:
        ahead = await _count_ahead(tx, row)
        paused = held(await holds(tx), QUEUE).get(row.queue)
        workers = await list_workers(tx, row.kind)
    return RolloutRows(
        row=row,
        run=run,
        request=request,
        attempt=await tx.one(sql.LATEST_ATTEMPT, id=id),
        uncharged=await tx.one(sql.COUNT_UNCHARGED, id=id) or 0,
        line=line,
        ahead=ahead,
        paused=paused,
        workers=workers,
        audit=audit,
    )


async def _find_workflow_run(tx: Tx, id: str) -> WorkflowRunRows | None:
    """Return a workflow run with its current nodes."""
    for row in await tx.all(workflow_sql.GET_RUNS, ids=[id]):
        if row.status in WORKFLOW_ENDED:
            return WorkflowRunRows(row=row)
        if row.queued_at is not None:
            queued = await tx.all(workflow_sql.QUEUED, n=MANY + 1)
            return WorkflowRunRows(row=row, ahead=queued.index(id) if id in queued else MANY + 1)
        nodes = [
            node
            for status in (RUNNING, WAITING)
            for node in await tx.all(workflow_sql.GET_IN_STATUS, run_id=id, status=status, n=MOST_NODES)
        ]
        approvals = await tx.all(approval_sql.OPEN_OF_RUN, run_id=id, n=MOST_NODES) if row.gates else []
        return WorkflowRunRows(row=row, nodes=nodes, approvals=approvals)
    return None


# --- reasons for waiting ----------------------------------------------------------------------------------


async def _find_line(tx: Tx, line: str, priority: int, place: int) -> LineFacts:
    row = await tx.one(sql.GET_LINE, line=line)
    holder, release_by = (None, None) if row is None else row
    status = await tx.one(sql.GET_STATUS, id=holder) if holder is not None else None
    ahead = await tx.one(sql.ABOVE_IN_LINE, line=line, priority=priority, n=MANY + 1) or 0
    ahead += await tx.one(sql.AHEAD_IN_LINE, line=line, priority=priority, place=place, n=MANY + 1) or 0
    return LineFacts(holder, status, release_by, ahead)


async def _count_ahead(tx: Tx, row: DiagnosedRolloutRow) -> int:
    if row.ready is None:
        return 0
    terms = {"queue": row.queue, "priority": row.priority, "n": MANY + 1}
    if row.agent is None:
        above = await tx.one(sql.ABOVE_IN_QUEUE, **terms) or 0
        return above + (await tx.one(sql.AHEAD_IN_QUEUE, **terms, place=row.ready) or 0)
    above = await tx.one(sql.ABOVE_OF_AGENT, **terms, agent=row.agent) or 0
    return above + (await tx.one(sql.AHEAD_OF_AGENT, **terms, agent=row.agent, place=row.ready) or 0)


async def list_workers(tx: Tx, kind: str) -> WorkerRows:
    """Return the workers of a namespace, and the number of rollouts of a kind that each executes."""
    workers = await tx.all(sql.LIST_WORKERS, n=MOST_WORKERS)
    held = await tx.all(sql.HELD_BY_WORKERS, kind=kind, statuses=sorted(LIVE)) if workers else []
    return WorkerRows(workers, held)


# --- who ended it -----------------------------------------------------------------------------------------


async def _find_end(tx: Tx, row: DiagnosedRolloutRow, run: RunRow | None) -> AuditMatch:
    if run is not None and run.gone_at is not None and run.temporary is None:
        return await _find_audit(tx, run.gone_at, (row.id, run.thread_id), ("delete_run", "delete_thread"))
    if row.status != CANCELLED or row.end_time is None:
        return AuditMatch()
    if run is None:
        return await _find_audit(tx, row.end_time, (row.id,), CANCELLING)
    replacement = await tx.one(
        sql.REPLACEMENT,
        thread_id=run.thread_id,
        since=row.end_time,
        until=row.end_time + A_MOMENT,
        strategies=list(STOPPING),
    )
    if replacement is None or replacement.id == row.id:
        return await _find_audit(tx, row.end_time, (row.id, run.thread_id), CANCELLING)
    match = await _find_audit(tx, row.end_time, (replacement.id,), ("create_run",))
    return AuditMatch(match.actor, match.action, instead=replacement.id, strategy=replacement.strategy)


async def _find_audit(tx: Tx, time: int, about: Sequence[str], actions: Sequence[str]) -> AuditMatch:
    """Return the audit entry of a change; calls without an actor leave none."""
    for entry in await tx.all(sql.AUDIT_AT, since=time, until=time + A_MOMENT, n=AUDIT_ENTRIES):
        named = entry.object.split(",")
        if entry.action in actions and (entry.count > len(named) or not set(named).isdisjoint(about)):
            return AuditMatch(entry.actor, entry.action)
    return AuditMatch()


# --- the path of a rollout --------------------------------------------------------------------------------


@requires(NOT_OVERDUE)
async def find_path(tx: Tx, id: str, kinds: Kinds) -> PathRows | None:
    """Return the rows of the path of a rollout, run or phase."""
    row = await tx.one(sql.GET_ROLLOUT, id=id)
    if row is None:
        return None
    run = (await load_runs(tx, [id])).get(id) if row.kind in RUN_KINDS else None
    attempts = list(reversed(await tx.all(sql.LATEST_ATTEMPTS, id=id, n=MOST_ATTEMPTS)))
    uncharged = await tx.one(sql.COUNT_UNCHARGED, id=id) or 0
    final = row.kind in kinds and kinds[row.kind].final
    return PathRows(
        row=row,
        attempts=attempts,
        uncharged=uncharged,
        spans={} if final else await _find_first_spans(tx, row, attempts),
        created=await _find_audit(tx, row.start_time, (id,), CREATING),
        ended=await _find_end(tx, row, run) if row.status in ENDED else await _find_queued_by(tx, row),
        requeued={} if final else await _find_requeues(tx, row, attempts, uncharged),
    )


async def _find_first_spans(
    tx: Tx, row: DiagnosedRolloutRow, attempts: Sequence[DiagnosedAttemptRow]
) -> dict[str, int]:
    starts = {}
    for attempt in attempts:
        terms = {"born": row.start_time, "id": row.id, "attempt_id": attempt.id}
        first = await tx.one(sql.FIRST_SPAN, **terms, n=FIRST_SPANS)
        if first is not None:
            starts[attempt.id] = first // 1000
    return starts


async def _find_queued_by(tx: Tx, row: DiagnosedRolloutRow) -> AuditMatch:
    """Return the audit entry of a requeue; outside of lines, the place of a rollout is the time."""
    if row.line is not None or row.status not in QUEUED or row.position == row.start_time:
        return AuditMatch()
    return await _find_audit(tx, row.position, (row.id,), (CHANGING,))


async def _find_requeues(
    tx: Tx, row: DiagnosedRolloutRow, attempts: Sequence[DiagnosedAttemptRow], uncharged: int
) -> dict[int, Requeue]:
    """Return the requeues after attempts for which the rules allow no further attempt."""
    limits, tries = decode_limits(row.config), count_tries(attempts, uncharged)
    requeues = {}
    for attempt, following in pairwise(attempts):
        if not goes_again(limits, attempt, tries[attempt.sequence_id]):
            since = attempt.end_time or attempt.start_time
            terms = {"since": since, "until": following.start_time + A_MOMENT, "n": SEARCHED_ENTRIES}
            for entry in await tx.all(sql.AUDIT_BEFORE, **terms):
                about = {name_part for name in entry.object.split(",") for name_part in name.split("/")}
                started = entry.action == STARTING
                queued = entry.action == CHANGING and entry.id <= following.start_time
                if (started or queued) and row.id in about:
                    requeues[attempt.sequence_id] = Requeue(entry.id, entry.actor, started)
                    break
    return requeues


# --- threads ----------------------------------------------------------------------------------------------


async def _find_thread(tx: Tx, thread: ThreadRow) -> ThreadRows:
    live = await tx.all(sql.LIVE_RUNS, thread_id=thread.id)
    line = await tx.one(sql.GET_LINE, line=thread.id)
    holder = None if line is None else line.holder
    busy = holder or next(iter(live), None)
    last = await tx.one(sql.LAST_RUN, thread_id=thread.id)
    state, audit = None, AuditMatch()
    if thread.checkpoint_id is not None:
        state = await tx.one(sql.ASKED, thread_id=thread.id, id=thread.checkpoint_id)
    if thread.gone_at is not None:
        audit = await _find_audit(tx, thread.gone_at, [thread.id], ["delete_thread"])
    return ThreadRows(
        row=thread,
        busy=None if busy is None else await _find_rollout(tx, busy),
        live=len(set(live) | ({holder} if holder else set())),
        last_run=None if last is None else (await load_runs(tx, [last])).get(last),
        asked=state,
        audit=audit,
    )


async def thread_totals(tx: Tx, thread_id: str) -> ThreadTotals:
    """Return the sums over the runs of a thread."""
    await check_thread(tx, thread_id)
    totals = await tx.one(sql.THREAD_TOTALS, thread_id=thread_id)
    assert totals is not None
    return totals


# --- statistics -------------------------------------------------------------------------------------------


class QueueRows(NamedTuple):
    """The queue of runs and the workers of a namespace. `now` is the database's time."""

    now: int
    queue: QueueStats
    workers: WorkerRows


class StatsRows(NamedTuple):
    """The statistics of a namespace; `outbox` counts effects by status."""

    runs: QueueRows
    outbox: dict[str, int]


@requires(NOT_OVERDUE)
async def stats(tx: Tx) -> StatsRows:
    """Return the statistics of this namespace."""
    outbox: dict[str, int] = {}
    for status in (PENDING, DEAD):
        _, total = await list_effects(tx, given(("status", "exact", status)), 0, 0)
        outbox[status] = total or 0
    return StatsRows(await _read_queue(tx), outbox)


async def _read_queue(tx: Tx) -> QueueRows:
    return QueueRows(tx.now, await queue_stats(tx), await list_workers(tx, RUN))


class NamespaceCondition(NamedTuple):
    """State of a namespace for `doctor`. `now` is the database's time."""

    now: int
    stats: StatsRows
    queues: list[Depth]
    drained: list[str]


@requires(NOT_OVERDUE)
async def condition(tx: Tx) -> NamespaceCondition:
    """Return the waiting rollouts, the workers, and the pauses of a namespace."""
    _, queues = await queues_here(tx)
    return NamespaceCondition(tx.now, await stats(tx), queues, sorted(held(await holds(tx), WORKER)))


async def live_workers(tx: Tx) -> tuple[int, WorkerRows]:
    """Return the workers of this namespace, and the time."""
    return tx.now, await list_workers(tx, RUN)


async def open_approvals(
    tx: Tx, namespaces: Collection[str] | None
) -> tuple[int, dict[str, OpenApprovalsRow]]:
    """Return the open approvals of these namespaces, or of all, and the time."""
    names = await list_namespaces(tx)
    wanted = [ns for ns, name in names.items() if namespaces is None or name in namespaces]
    approvals = {names[ns]: OpenApprovalsRow(ns, 0, tx.now) for ns in wanted}
    approvals |= {names[row.ns]: row for row in await tx.all(sql.OPEN_APPROVALS, numbers=wanted)}
    return tx.now, approvals


async def by_namespace(tx: Tx, namespaces: Collection[str] | None) -> dict[str, QueueRows]:
    """Return the queue and the workers of these namespaces, or of all, that have runs or workers."""
    names = await list_namespaces(tx)
    here, rows = tx.ns, {}
    try:
        for ns in await tx.all(sql.NAMESPACES_WITH, kind=RUN):
            if namespaces is None or names[ns] in namespaces:
                tx.ns = ns
                rows[names[ns]] = await _read_queue(tx)
    finally:
        tx.ns = here
    return rows
