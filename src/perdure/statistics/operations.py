"""Writes and reads the queues by the minute, and the usage by the hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Tx
from perdure.kernel.tally import Place
from perdure.rollouts.model import CANCELLED, SUCCEEDED
from perdure.rollouts.operations.overview import depths
from perdure.service.tables import SYSTEM
from perdure.spans.figures import CALLS
from perdure.statistics import sql
from perdure.statistics.model import (
    ALL,
    HOUR,
    MINUTE,
    USAGE_WINDOW,
    AddedUsageRow,
    MinuteRow,
    QueueHistory,
    UsageBy,
    UsageHistory,
    UsageStepRow,
    WaitRow,
    build_history,
    build_hours,
    build_usage,
    build_window,
)

MOST_ROWS = 50_000
"""Maximum number of rows of steps that one call reads."""
TRIM_ROWS = 500
USAGE_ROWS = 500
"""Number of rows of usage that one transaction adds to the hours."""


class Waits(NamedTuple):
    """Claims of a queue: their number by bucket of waiting time, and their total waiting time."""

    buckets: Sequence[int]
    micros: int


class Counted(NamedTuple):
    """Counts of a process since its last write, by namespace and queue, ends also by status."""

    waits: Mapping[Place, Waits]
    ends: Mapping[tuple[int | None, str, str], int]

    def __bool__(self) -> bool:
        return bool(self.waits or self.ends)


async def record_minute(tx: Tx, counted: Counted, look: bool) -> bool:
    """Add the counts of a process to the minute that is mostly over; return whether it read the depths.

    With `look`, read the depths too, unless another process has read them for this minute.
    """
    minute = (tx.wall - MINUTE // 2) // MINUTE * MINUTE
    rows: dict[tuple[int, str], MinuteRow] = {}
    looked = look and bool(
        await tx.insert_new(sql.TAKE_MINUTE, [MinuteRow(ns=SYSTEM, minute=minute, queue=ALL)])
    )
    if looked:
        for depth in await depths(tx):
            oldest = 0 if depth.oldest is None else max(tx.now - depth.oldest, 0)
            rows[depth.ns, depth.queue] = MinuteRow(
                depth.ns, minute, depth.queue, depth.ready, depth.delayed, depth.waiting, oldest
            )
    waits = []
    for (ns, queue), waited in counted.waits.items():
        if ns is None:
            continue
        row = rows.get((ns, queue)) or MinuteRow(ns, minute, queue)
        rows[ns, queue] = row._replace(claimed=sum(waited.buckets), waited=waited.micros)
        waits += [WaitRow(ns, minute, queue, bucket, n) for bucket, n in enumerate(waited.buckets) if n]
    for (ns, queue, status), count in counted.ends.items():
        if ns is None:
            continue
        row = rows.get((ns, queue)) or MinuteRow(ns, minute, queue)
        if status == SUCCEEDED:
            row = row._replace(succeeded=row.succeeded + count)
        elif status == CANCELLED:
            row = row._replace(cancelled=row.cancelled + count)
        else:
            row = row._replace(failed=row.failed + count)
        rows[ns, queue] = row
    minutes = [rows[key] for key in sorted(rows)]
    await tx.write(sql.ADD_MINUTES.of(minutes), sql.ADD_WAITS.of(sorted(waits)))
    return looked


async def queue_history(tx: Tx, since: float | None, until: float | None) -> QueueHistory:
    """Return the queues of a namespace over time."""
    window = build_window(since, until, tx.wall)
    terms = {"since": window.since, "until": window.until, "step": window.step, "n": MOST_ROWS}
    return build_history(
        window,
        await tx.all(sql.LOOKED_AT, system=SYSTEM, **terms),
        await tx.all(sql.LIST_STEPS, **terms),
        await tx.all(sql.LIST_STEP_WAITS, **terms),
    )


USAGE: Mapping[UsageBy, Statement[UsageStepRow]] = {
    "model": sql.USAGE_BY_MODEL,
    "agent": sql.USAGE_BY_AGENT,
    "user": sql.USAGE_BY_USER,
    "kind": sql.USAGE_BY_KIND,
}


async def add_usage_to_hours(tx: Tx) -> int:
    """Add usage of new spans to the hours, in all namespaces, 500 rows at most; return the number of rows."""
    rows = await tx.all(sql.TAKE_USAGE, n=USAGE_ROWS)
    if rows:
        await tx.execute_many(sql.DROP_USAGE, [_usage_key(row) for row in rows])
        await tx.write(sql.ADD_HOURS.of(build_hours(rows)))
    return len(rows)


def _usage_key(row: AddedUsageRow) -> dict[str, Any]:
    return {
        "ns": row.ns,
        "rollout_id": row.rollout_id,
        "hour": row.hour,
        "kind": row.kind,
        "model": row.model,
        "agent": row.agent,
        "user_id": row.user_id,
    }


async def usage_history(tx: Tx, by: UsageBy, since: float | None, until: float | None) -> UsageHistory:
    """Return the usage of a namespace over time."""
    window = build_window(since, until, tx.wall, shortest=HOUR, usual=USAGE_WINDOW)
    terms: dict[str, Any] = {"since": window.since, "until": window.until, "step": window.step}
    if by != "kind":
        terms["kinds"] = sorted(CALLS)
    return build_usage(window, by, await tx.all(USAGE[by], n=MOST_ROWS, **terms))


async def trim_hours(tx: Tx, age: int) -> int:
    """Delete some of the hours that are older than `age` microseconds; return how many rows."""
    return await tx.execute(sql.TRIM_HOURS, before=tx.now - age, n=TRIM_ROWS)


async def trim(tx: Tx, age: int) -> int:
    """Delete some of the minutes that are older than `age` microseconds; return how many rows."""
    before = tx.now - age
    statements = (sql.TRIM_MINUTES, sql.TRIM_WAITS)
    return sum([await tx.execute(statement, before=before, n=TRIM_ROWS) for statement in statements])
