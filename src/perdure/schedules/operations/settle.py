"""Open firings: read the started work, and record its end under the schedule's lock.

The end of work locks no schedules, because these are locked before all other rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.kernel import changes
from perdure.kernel.storage.port import Tx
from perdure.schedules import sql
from perdure.schedules.model import (
    COMPLETED,
    FAILED,
    FIRING,
    RUNNING,
    SUCCESS,
    FiringOutcome,
    ScheduleTargets,
)
from perdure.schedules.operations.edit import KIND
from perdure.schedules.rows import FiringKey, FiringRow, ScheduleRow, kept_result

OPEN_ROWS = 1000
"""Number of open firings that are looked at together."""

Outcomes = Mapping[FiringKey, FiringOutcome]
"""Outcomes of open firings by key."""


class OpenFiring(NamedTuple):
    """An open firing with its started work; None if that was deleted."""

    firing: FiringRow
    found: Any


async def read_open(tx: Tx, schedule_ids: Sequence[str], targets: ScheduleTargets) -> list[OpenFiring]:
    """Return the open firings of schedules with known targets, with their started work."""
    if not schedule_ids:
        return []
    rows = await tx.all(sql.OPEN_FIRINGS, ids=list(schedule_ids), n=OPEN_ROWS)
    by_target: dict[str, list[FiringRow]] = {}
    for row in rows:
        if row.target is not None and row.target in targets:
            by_target.setdefault(row.target, []).append(row)
    open_firings: list[OpenFiring] = []
    for target, firings in by_target.items():
        started = await targets[target].find(tx, [row.started_id or "" for row in firings])
        open_firings += [OpenFiring(row, started.get(row.started_id or "")) for row in firings]
    return open_firings


async def running(tx: Tx, after: str) -> list[str]:
    """Return a batch of schedules with open firings."""
    return await tx.all(sql.RUNNING, after=after, n=OPEN_ROWS)


async def running_namespaces(tx: Tx) -> list[int]:
    """Return the namespaces with open firings."""
    return await tx.all(sql.RUNNING_NAMESPACES)


async def settle(tx: Tx, outcomes: Outcomes) -> int:
    """Record the end of firings; return their number. A firing that was settled before stays as it is."""
    rows = await tx.all(sql.LOCK, ids=sorted({key.schedule_id for key in outcomes}))
    ended = await apply(tx, rows, outcomes)
    if ended:
        await tx.update_many(sql.MOVE, rows)
        changes.tell(tx, KIND, [(row.id, "settled") for row in rows])
    return ended


async def apply(tx: Tx, rows: Sequence[ScheduleRow], outcomes: Outcomes) -> int:
    """Record the end of firings of locked schedules; the caller writes the changed schedules."""
    ids = {key.schedule_id for key in outcomes}
    wanted = {row.id: row for row in rows if row.id in ids and row.running}
    if not wanted:
        return 0
    open_rows = await tx.all(sql.OPEN_FIRINGS, ids=sorted(wanted), n=OPEN_ROWS)
    ended = [
        _end_firing(wanted[firing.schedule_id], firing, outcomes[firing.key])
        for firing in open_rows
        if firing.key in outcomes
    ]
    if ended:
        await tx.update_many(sql.END_FIRINGS, ended)
    return len(ended)


def _end_firing(row: ScheduleRow, firing: FiringRow, outcome: FiringOutcome) -> FiringRow:
    """Return the ended firing, and update its schedule."""
    status = FIRING.step(RUNNING, outcome.event)
    result = kept_result(outcome.result)
    row.running = max((row.running or 0) - 1, 0)
    row.last_duration, row.last_metadata = outcome.duration, result
    if status == FAILED:
        row.failed, row.error = (row.failed or 0) + 1, outcome.error
    elif status == SUCCESS:
        row.error = None
    row.last_result, row.last_error = None if status == COMPLETED else status, outcome.error
    return firing._replace(
        status=status,
        ended_at=firing.fired_at + (outcome.duration or 0),
        duration=outcome.duration,
        error=outcome.error,
        open=None,
        metadata=result,
    )
