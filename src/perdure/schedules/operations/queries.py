"""Reads of schedules, with their overrides and firings."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.errors import JobNotFound
from perdure.kernel.storage.filters import Clause, given, where
from perdure.kernel.storage.labels import labelled
from perdure.kernel.storage.port import Tx
from perdure.schedules import sql
from perdure.schedules.model import ScheduleFilter
from perdure.schedules.rows import CronOverrideRow, FiringRow, ScheduleRow

KIND = "schedule"


async def overridden(tx: Tx, rows: Sequence[ScheduleRow]) -> None:
    """Read the overrides of schedules into their rows."""
    names = sorted({row.name for row in rows if row.is_managed and row.name is not None})
    if names:
        overrides = {override.name: override for override in await tx.all(sql.GET_OVERRIDES, names=names)}
        for row in rows:
            row.override = overrides.get(row.name or "") if row.is_managed else None


async def find(tx: Tx, name: str) -> ScheduleRow | None:
    """Find a schedule by id or name."""
    row = await tx.one(sql.GET, ids=[name]) or await tx.one(sql.GET_NAMED, names=[name])
    if row is not None:
        await overridden(tx, [row])
    return row


async def get(tx: Tx, name: str) -> ScheduleRow:
    """Get a schedule by id or name; JobNotFound if there is none."""
    row = await find(tx, name)
    if row is None:
        raise not_found(name)
    return row


async def get_now(tx: Tx, name: str) -> tuple[ScheduleRow, int]:
    """Get a schedule and the current time."""
    return await get(tx, name), tx.wall


def not_found(name: str) -> JobNotFound:
    return JobNotFound(f"Job not found: {name}")


async def locked(tx: Tx, name: str) -> ScheduleRow:
    """Lock a schedule by id or name."""
    row = await find(tx, name)
    rows = [] if row is None else await tx.all(sql.LOCK, ids=[row.id])
    if not rows:
        raise not_found(name)
    await overridden(tx, rows)
    return next(iter(rows))


async def firings(tx: Tx, name: str, before: int, limit: int, offset: int) -> list[FiringRow]:
    """Return the latest firings of a schedule before a time, newest first."""
    row = await get(tx, name)
    return await tx.all(sql.LIST_FIRINGS, id=row.id, before=before, limit=limit, offset=offset)


async def get_firing(tx: Tx, schedule_id: str, due_at: int) -> FiringRow:
    """Find a firing."""
    row = await tx.one(sql.GET_FIRING, id=schedule_id, due_at=due_at)
    if row is None:
        raise not_found(schedule_id)
    return row


async def search(tx: Tx, query: ScheduleFilter) -> tuple[list[ScheduleRow], int]:
    """Return a page of schedules, and the total number."""
    clause = _build_clause(query)
    page, values = sql.LIST.page(clause, query.order, query.limit, query.offset, query.place)
    rows = await tx.all(page, **values)
    await overridden(tx, rows)
    total = await tx.one(sql.LIST.count(clause), **clause.values)
    return rows, total or 0


def _build_clause(query: ScheduleFilter) -> Clause:
    conditions = given(
        ("target", "exact", query.target),
        ("origin", "within", query.origins),
        ("name", "exact", query.name),
        ("assistant_id", "exact", query.assistant_id),
        ("thread_id", "exact", query.thread_id),
        ("enabled", "exact", None if query.enabled is None else int(query.enabled)),
    )
    clause = where(sql.FIELDS, conditions, "and")
    labels = labelled(KIND, query.metadata)
    return Clause(clause.sql + " AND " + labels.sql, {**clause.values, **labels.values})


async def named(tx: Tx, after: str, limit: int) -> list[ScheduleRow]:
    """Return a page of the named schedules in the order of their names."""
    rows = await tx.all(sql.LIST_NAMED, after=after, n=limit)
    await overridden(tx, rows)
    return rows


async def get_override(tx: Tx, name: str) -> CronOverrideRow | None:
    """Find the override of a schedule by name."""
    return await tx.one(sql.GET_OVERRIDES, names=[name])


async def list_overrides(tx: Tx, after: str, limit: int) -> list[CronOverrideRow]:
    """Return a page of the overrides in the order of their names."""
    return await tx.all(sql.LIST_OVERRIDES, after=after, n=limit)
