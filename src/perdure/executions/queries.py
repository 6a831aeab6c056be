"""Read executions, their statistics and chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.executions import sql
from perdure.executions.model import get_outcome
from perdure.executions.operations import (
    DAY,
    HOUR,
    HOURS,
    SKILLS,
    TRIGGERS,
    WORKFLOW_DAYS,
    WORKFLOW_HOURS,
    outputs,
)
from perdure.executions.rows import ChatRow, ExecutionCursor, ExecutionRow, OpenCount, SumRow, WholeExecution
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Tx

MAX_NAMES = 4000
"""Maximum number of rows that are read from the statistics by name and outcome."""
MAX_FAILURES = 10
"""Maximum number of consecutive failures that are counted."""
AFTER_COLON = ";"
"""The character after the colon, which ends the name of a workflow in a skill."""


async def get(tx: Tx, execution_id: str) -> WholeExecution:
    """Return an execution with its output. Raise NotFound if there is none."""
    row = await tx.one(sql.GET, id=execution_id)
    if row is None:
        raise NotFound(f"Execution {execution_id} not found")
    return row


async def find_by_ids(tx: Tx, execution_ids: Sequence[str]) -> list[str]:
    """Return the ids of existing executions."""
    return [row.id for row in await tx.all(sql.GET_OUTPUTS, ids=sorted(set(execution_ids)))]


async def page(
    tx: Tx, listing: Statement[ExecutionRow], value: str | None, place: ExecutionCursor, limit: int
) -> list[ExecutionRow]:
    """List executions after a cursor, the newest first."""
    bound = {} if value is None else {"value": value}
    return await tx.all(listing, at=place.at, id=place.id, n=limit, **bound)


async def of_workflow_run(
    tx: Tx, run: str, trigger_id: str | None, workflow: str, place: ExecutionCursor, limit: int
) -> list[ExecutionRow]:
    """List the executions of a workflow run in the order of their start."""
    return await tx.all(
        sql.OF_WORKFLOW_RUN,
        run=run,
        trigger_id=trigger_id or "",
        first=workflow + ":" if workflow else "",
        last=workflow + AFTER_COLON if workflow else "\U0010ffff",
        at=place.at,
        id=place.id,
        n=limit,
    )


async def consecutive_failures(tx: Tx, skill: str) -> int:
    """Count the newest executions of a skill that failed in a row."""
    count = 0
    for row in await tx.all(sql.ENDED_OF_SKILL, skill=skill, n=MAX_FAILURES):
        if get_outcome(row.success or 0, row.stop_reason) != "failed":
            break
        count += 1
    return count


class ExecutionSums(NamedTuple):
    """Sums of the statistics, and executions that have not ended."""

    now: int
    by_skill: list[SumRow]
    by_trigger: list[SumRow]
    today: list[SumRow]
    running: list[OpenCount]


async def stats(tx: Tx) -> ExecutionSums:
    today = tx.now - tx.now % DAY
    return ExecutionSums(
        tx.now,
        await tx.all(sql.SUMS_BY_NAME, series=SKILLS, since=0, n=MAX_NAMES),
        await tx.all(sql.SUMS_BY_NAME, series=TRIGGERS, since=0, n=MAX_NAMES),
        await tx.all(sql.SUMS_SINCE, series=HOURS, since=today),
        await tx.all(sql.OPEN_BY_HOUR, hour=HOUR),
    )


async def since(
    tx: Tx, buckets: int, size: int, workflow: str | None
) -> tuple[int, list[SumRow], list[OpenCount]]:
    """Return the start of the current hour or day, and the sums of the last hours or days including it.

    The sums cover all executions, or one workflow.
    """
    last = tx.now - tx.now % size
    first = last - (buckets - 1) * size
    if workflow is None:
        # For days, the series of days by workflow has far fewer rows than the series of hours.
        series = HOURS if size == HOUR else WORKFLOW_DAYS
        rows = await tx.all(sql.SUMS_SINCE, series=series, since=first)
        return last, rows, await tx.all(sql.OPEN_BY_HOUR, hour=HOUR)
    series = WORKFLOW_HOURS if size == HOUR else WORKFLOW_DAYS
    rows = await tx.all(sql.SUMS_OF_NAME, series=series, since=first, name=workflow)
    beginning, end = workflow + ":", workflow + AFTER_COLON
    return last, rows, await tx.all(sql.OPEN_OF_WORKFLOW, hour=HOUR, first=beginning, last=end)


async def sums_by_name(tx: Tx, series: str, days: int) -> list[SumRow]:
    """Return the sums of each skill or workflow over the last days, including today."""
    first = tx.now - tx.now % DAY - (days - 1) * DAY
    return await tx.all(sql.SUMS_BY_NAME, series=series, since=first, n=MAX_NAMES)


async def chats(tx: Tx, place: ExecutionCursor, limit: int) -> tuple[list[ChatRow], dict[str, str]]:
    """List chats after a cursor, the last active first, with their last texts by execution."""
    rows = await tx.all(sql.LIST_CHATS, at=place.at, id=place.id, n=limit)
    return rows, await _texts(tx, rows)


async def chat(tx: Tx, trigger_id: str) -> tuple[ChatRow, dict[str, str]]:
    """Return a chat and its last text. Raise NotFound if there is none."""
    row = await tx.one(sql.GET_CHAT, trigger_id=trigger_id)
    if row is None:
        raise NotFound(f"Chat {trigger_id} not found")
    return row, await _texts(tx, [row])


async def _texts(tx: Tx, rows: Sequence[ChatRow]) -> dict[str, str]:
    return await outputs(tx, [row.last_execution_id for row in rows]) if rows else {}
