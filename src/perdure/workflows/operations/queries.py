"""Read runs: lists, counts, and one run with all its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.filters import Clause
from perdure.kernel.storage.port import Tx
from perdure.workflows import sql
from perdure.workflows.inputs import Reading
from perdure.workflows.model import RUN_STATUSES, SUCCEEDED, build_skill
from perdure.workflows.operations.runs import load_plans, not_found
from perdure.workflows.planner import WorkflowPlan
from perdure.workflows.rows import (
    ExecutionLogRow,
    HistoryRow,
    LogCursor,
    NameCount,
    RunStatusCount,
    TriesRow,
    WorkflowNodeRow,
    WorkflowRunRow,
)
from perdure.workflows.views import WorkflowRunCursor, get_rank, statuses_after

MAX_NODES: Final = 2000
MAX_HISTORY: Final = 1000
SCANNED: Final = 5000
"""Maximum number of executions that one search reads."""


class WorkflowRunFilter(NamedTuple):
    """Filters of a list of runs, and its page."""

    workflow_name: str | None
    statuses: Sequence[str]
    repo: str | None
    since: int | None
    place: WorkflowRunCursor
    limit: int


async def search(tx: Tx, query: WorkflowRunFilter) -> list[WorkflowRunRow]:
    """List a page of runs: running, paused, queued, then the rest, the newest first within each.

    An index keeps the runs of each status in order, for every filter. The statuses of the rest are merged
    from the first runs of each.
    """
    rows: list[WorkflowRunRow] = []
    for place, statuses in _groups(query).items():
        clause = _matching(query, sql.BEFORE, at=place.at, last=place.id)
        left = query.limit - len(rows)
        page, values = sql.ALL_RUNS.heads("status", statuses, sql.NEWEST_FIRST, left, 0, clause=clause)
        rows += await tx.all(page, **values)
        if len(rows) == query.limit:
            break
    return rows


async def page(
    tx: Tx, query: WorkflowRunFilter, asked: bool = True
) -> tuple[int | None, list[WorkflowRunRow]]:
    """Return a page of runs and the number of all matching runs; None if it would have to be counted."""
    query = query._replace(statuses=list(query.statuses or RUN_STATUSES))
    if query.repo is None and query.since is None:
        counted = await _counts(tx, query)
        total: int | None = sum(int(row.total) for row in counted)
        # Only statuses that have runs are queried.
        query = query._replace(statuses=[row.status for row in counted if row.total > 0])
    else:
        clause = _matching(query, sql.IN_STATUSES, statuses=query.statuses)
        total = None
        if asked or not query.limit:
            total = int(await tx.one(sql.ALL_RUNS.count(clause), **clause.values) or 0)
    return total, await search(tx, query) if query.limit and query.statuses else []


async def _counts(tx: Tx, query: WorkflowRunFilter) -> list[RunStatusCount]:
    """Return the stored counts of the requested statuses."""
    if query.workflow_name is None:
        return await tx.all(sql.COUNT, statuses=query.statuses)
    return await tx.all(sql.COUNT_NAMED, statuses=query.statuses, name=query.workflow_name)


def _groups(query: WorkflowRunFilter) -> dict[WorkflowRunCursor, list[str]]:
    """Group the statuses after the cursor by list; the key of a group is the cursor in its list."""
    groups: dict[WorkflowRunCursor, list[str]] = {}
    for status, place in statuses_after(query.statuses or RUN_STATUSES, query.place):
        groups.setdefault(place._replace(rank=get_rank(status)), []).append(status)
    return groups


def _matching(query: WorkflowRunFilter, first: str, **values: Any) -> Clause:
    """Build the condition of runs: a first condition, and the conditions of the given filters."""
    parts = [first]
    given = {"name": query.workflow_name, "repo": query.repo, "since": query.since}
    for name, value in given.items():
        if value is not None:
            parts.append(sql.CONDITIONS[name])
            values[name] = value
    return Clause(" AND ".join(parts), values)


async def counts(tx: Tx) -> list[NameCount]:
    """Count the runs of each workflow and status."""
    return await tx.all(sql.COUNTS_BY_NAME)


class WholeRun(NamedTuple):
    """A run with all that belongs to it."""

    run: WorkflowRunRow
    plan: WorkflowPlan
    nodes: Sequence[WorkflowNodeRow]
    history: Sequence[HistoryRow]
    context: Any
    scratch: Any
    final_message: str | None
    tries: Mapping[str, TriesRow]
    """Executions by label."""


async def find(tx: Tx, run_id: str) -> WorkflowRunRow:
    """Return a run by its id, or by the first digits of its id if they match no other run."""
    rows = await tx.all(sql.GET_RUNS, ids=[run_id])
    if not rows and len(run_id) >= 4:
        rows = await tx.all(sql.BY_PREFIX, first=run_id, last=run_id + "\U0010ffff")
    if not rows:
        raise not_found(run_id)
    if len(rows) > 1:
        raise Conflict(f"several workflow runs begin with {run_id}; give more digits of the id")
    (row,) = rows
    return row


async def get_whole(tx: Tx, run_id: str) -> WholeRun:
    """Return a run with its nodes, its history and its values."""
    run = await find(tx, run_id)
    plan = (await load_plans(tx, [run]))[run.id]
    nodes = await tx.all(sql.ALL_NODES, run_id=run.id, n=MAX_NODES)
    history = await tx.all(sql.HISTORY_OF, run_id=run.id, after=run.history - MAX_HISTORY)
    reading = Reading(tx, run, plan)
    message = None
    if plan.final_message is not None and run.status == SUCCEEDED:
        scope = await reading.values.scope(plan.final_message.paths())
        message = plan.final_message.render(scope) or None
    context, scratch = await reading.values.whole_context(), await reading.values.scratch()
    tries = await _tries(tx, run, nodes)
    return WholeRun(run, plan, nodes, history, context, scratch, message, tries)


async def _tries(tx: Tx, run: WorkflowRunRow, nodes: Sequence[WorkflowNodeRow]) -> dict[str, TriesRow]:
    """Return the executions of each node's label."""
    labels = {build_skill(run.workflow_name, node.label): node.label for node in nodes if node.label}
    if not labels:
        return {}
    rows = await tx.all(sql.TRIES, run_id=run.id, skills=sorted(labels))
    return {labels[row.skill]: row for row in rows}


async def get_definition(tx: Tx, run_id: str) -> tuple[WorkflowRunRow, WorkflowPlan]:
    """Return a run and the plan that it follows."""
    run = await find(tx, run_id)
    return run, (await load_plans(tx, [run]))[run.id]


async def history(tx: Tx, run_id: str, after: int, limit: int) -> list[HistoryRow]:
    """Return the entries of a run's history after a number, in order."""
    run = await find(tx, run_id)
    rows = await tx.all(sql.HISTORY_OF, run_id=run.id, after=after)
    return rows[:limit]


async def by_trigger(tx: Tx, trigger_id: str, statuses: Sequence[str]) -> WorkflowRunRow:
    """Return the newest run of a trigger with one of the statuses."""
    row = await tx.one(sql.BY_TRIGGER, trigger_id=trigger_id, statuses=list(statuses))
    if row is None:
        raise NotFound(f"Trigger {trigger_id} has no such workflow run")
    return row


class LogQuery(NamedTuple):
    """A search for a text in executions, and its cursor."""

    text: str
    scope: str
    at: int
    last: str
    limit: int


class LogMatches(NamedTuple):
    """Executions with a text in their error or output, and the last execution that was searched."""

    rows: Sequence[ExecutionLogRow]
    last: LogCursor | None


async def search_logs(tx: Tx, query: LogQuery) -> LogMatches:
    """Return the newest executions that contain a text. One call searches a limited number of executions."""
    place = {"at": query.at, "last": query.last}
    end = await tx.one(sql.LOG_END, **place, scan=SCANNED - 1)
    first = LogCursor(0, "") if end is None else end
    rows = await tx.all(
        sql.SEARCH_LOGS[query.scope],
        **place,
        first_at=first.started_at,
        first_id=first.id,
        text=query.text,
        limit=query.limit,
    )
    if len(rows) == query.limit:
        row = rows[-1]
        return LogMatches(rows, LogCursor(row.started_at, row.id))
    return LogMatches(rows, end)
