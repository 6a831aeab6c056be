"""Overrides: what counts instead of the definition of a schedule in code or in a file."""

from __future__ import annotations

from msgspec import UNSET

from perdure.kernel.errors import Conflict
from perdure.kernel.storage.port import Tx
from perdure.schedules import sql
from perdure.schedules.model import OverrideChange
from perdure.schedules.operations.edit import move, written
from perdure.schedules.operations.queries import find, locked, not_found
from perdure.schedules.rows import CronOverrideRow, ScheduleRow
from perdure.service.callers import format_actor


async def set_override(tx: Tx, name: str, change: OverrideChange) -> CronOverrideRow:
    """Change what overrides a schedule; what is not named stays as it is, and is enabled at first."""
    row = await locked(tx, name)
    if not row.is_managed or row.name is None:
        raise Conflict(f"{row.label} was made by a call and has no definition to override; update it instead")
    known = row.override or CronOverrideRow(row.name, 1, None, tx.wall, None)
    row.override = known._replace(
        enabled=known.enabled if change.enabled is UNSET else int(change.enabled),
        schedule=known.schedule if change.schedule is UNSET else change.schedule,
        updated_at=tx.wall,
        updated_by=format_actor(tx.actor),
    )
    await tx.write(sql.SAVE_OVERRIDES.of([row.override]))
    await move(tx, row)
    await written(tx, "override_schedule", [row.id], "updated")
    return row.override


async def clear_override(tx: Tx, name: str) -> None:
    """Let the definition of a schedule count again. An override may outlast its schedule."""
    found = await find(tx, name)
    row: ScheduleRow | None = None if found is None else await locked(tx, found.id)
    dropped = await tx.execute(sql.DROP_OVERRIDE, name=name if row is None else row.name or "")
    if row is None and not dropped:
        raise not_found(name)
    if row is not None and dropped:
        row.override = None
        await move(tx, row)
    if dropped:
        await written(tx, "clear_override", [name if row is None else row.id], "updated")
