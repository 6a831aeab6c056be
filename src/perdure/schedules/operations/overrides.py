"""Operations on overrides of schedules that code or a file defines."""

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
    """Change the override of a schedule; omitted fields stay as they are, and a new override is enabled."""
    row = await locked(tx, name)
    if not row.is_managed or row.name is None:
        raise Conflict(f"{row.label} was created by a call and has no definition; update it instead")
    override = row.override or CronOverrideRow(row.name, 1, None, tx.wall, None)
    row.override = override._replace(
        enabled=override.enabled if change.enabled is UNSET else int(change.enabled),
        schedule=override.schedule if change.schedule is UNSET else change.schedule,
        updated_at=tx.wall,
        updated_by=format_actor(tx.actor),
    )
    await tx.write(sql.SAVE_OVERRIDES.of([row.override]))
    await move(tx, row)
    await written(tx, "override_schedule", [row.id], "updated")
    return row.override


async def clear_override(tx: Tx, name: str) -> None:
    """Delete an override, so that the definition applies again. The schedule may no longer exist."""
    unlocked = await find(tx, name)
    row: ScheduleRow | None = None if unlocked is None else await locked(tx, unlocked.id)
    dropped = await tx.execute(sql.DROP_OVERRIDE, name=name if row is None else row.name or "")
    if row is None and not dropped:
        raise not_found(name)
    if row is not None and dropped:
        row.override = None
        await move(tx, row)
    if dropped:
        await written(tx, "clear_override", [name if row is None else row.id], "updated")
