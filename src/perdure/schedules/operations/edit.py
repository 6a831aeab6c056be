"""Operations that create, change, delete and sync schedules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from perdure.assistants.operations import resolve
from perdure.kernel import changes, ids
from perdure.kernel.cron import next_time
from perdure.kernel.errors import Conflict, InvalidCron, NotFound, PerdureError
from perdure.kernel.storage.labels import drop_labels, set_labels
from perdure.kernel.storage.port import Tx
from perdure.schedules import sql
from perdure.schedules.model import FILE, NewSchedule, ScheduleChange, ScheduleTargets
from perdure.schedules.operations.queries import locked, overridden
from perdure.schedules.rows import ScheduleRow
from perdure.service.audit import audit
from perdure.service.idempotency import keyed_as

KIND = "schedule"
CHANNEL = "schedules"
ANY = "any"
"""The only key of the channel: a schedule was changed."""


@keyed_as("create_schedule")
async def create(
    tx: Tx, requests: Sequence[NewSchedule], targets: ScheduleTargets
) -> list[str | PerdureError]:
    """Create schedules; return an id or an error for each."""
    answers: list[str | PerdureError] = []
    rows: list[ScheduleRow] = []
    labels: dict[str, Mapping[str, str]] = {}
    names = [request.name for request in requests if request.name is not None]
    taken = {row.name for row in await tx.all(sql.GET_NAMED, names=names)} if names else set()
    for request in requests:
        try:
            if request.name is not None and request.name in taken:
                raise Conflict(f"schedule {request.name!r} already exists")
            row = await _build_row(tx, request, targets)
        except PerdureError as error:
            answers.append(error)
            continue
        taken.add(row.name)
        rows.append(row)
        answers.append(row.id)
        labels[row.id] = request.labels
    if rows:
        await tx.write(sql.ADD.of(rows))
        await set_labels(tx, KIND, labels)
        await written(tx, "create_schedule", [row.id for row in rows], "added")
    return answers


async def _build_row(tx: Tx, request: NewSchedule, targets: ScheduleTargets) -> ScheduleRow:
    _check_comes(tx, request.expression, request.timezone)
    row = ScheduleRow(
        id=ids.uuid(tx.now, tx.ids),
        name=request.name,
        origin=request.origin,
        file=request.file,
        target=request.target,
        expression=request.expression,
        timezone=request.timezone,
        enabled=int(request.enabled),
        next_at=None,
        due_at=None,
        end_at=request.end_at,
        jitter=request.jitter,
        overlap=request.overlap,
        misfire=request.misfire,
        timeout=request.timeout,
        unless=request.unless,
        assistant_id=await _resolve_assistant(tx, request.assistant),
        thread_id=request.thread_id,
        user_id=request.user_id,
        created_at=tx.wall,
        updated_at=tx.wall,
        fired_at=None,
        fired=0,
        refused=0,
        skipped=0,
        failed=0,
        running=0,
        started_id=None,
        error=None,
        last_result=None,
        last_error=None,
        last_duration=None,
        metadata=request.texts.metadata,
        payload=request.texts.payload,
        last_metadata=None,
    )
    row.plan(tx.wall)
    refusal = await targets[row.target].refusal(tx, row.thread_id)
    if refusal is not None:
        raise refusal
    return row


def _check_comes(tx: Tx, expression: str, timezone: str | None) -> None:
    if next_time(expression, timezone, tx.wall) is None:
        raise InvalidCron(f"Invalid cron expression: {expression!r} never comes")


async def _resolve_assistant(tx: Tx, name: str | None) -> str | None:
    if name is None:
        return None
    assistant_id = (await resolve(tx, [name])).get(name)
    if assistant_id is None:
        raise NotFound(f"Assistant {name} not found")
    return assistant_id.id


async def update(tx: Tx, schedule_id: str, change: ScheduleChange) -> bool:
    """Change a schedule, and compute its next time again if that depends on the change.

    Return False and change nothing if the stored texts differ from those that the change is based on.
    """
    row = await locked(tx, schedule_id)
    if row.texts != change.known:
        return False
    for name in ("expression", "timezone", "end_at", "jitter", "overlap", "misfire", "timeout"):
        if (value := getattr(change, name)) is not UNSET:
            setattr(row, name, value)
    row.enabled = row.enabled if change.enabled is UNSET else int(change.enabled)
    if change.moves:
        _check_comes(tx, row.expression, row.timezone)
        _plan_anew(tx, row)
    row.metadata, row.payload = change.texts
    row.updated_at = tx.wall
    await tx.update_many(sql.SAVE, [row])
    await set_labels(tx, KIND, {row.id: change.labels})
    await written(tx, "update_schedule", [row.id], "updated")
    return True


def _plan_anew(tx: Tx, row: ScheduleRow) -> None:
    """Set the next time from now on; after a clock step back, no time fires twice."""
    row.plan(max(tx.wall, row.fired_at or 0))


async def move(tx: Tx, row: ScheduleRow) -> None:
    """Update the next time of a locked schedule whose override has changed."""
    _check_comes(tx, row.cron, row.timezone)
    _plan_anew(tx, row)
    row.updated_at = tx.wall
    await tx.update_many(sql.SAVE, [row])


async def delete(tx: Tx, schedule_id: str) -> None:
    """Delete a schedule with its firings; its started work stays."""
    row = await locked(tx, schedule_id)
    if row.origin == FILE:
        raise managed(row, "deleted")
    await _drop(tx, [row.id])
    await written(tx, "delete_schedule", [row.id], "deleted")


async def _drop(tx: Tx, schedule_ids: Sequence[str]) -> None:
    await tx.execute(sql.DROP, ids=list(schedule_ids))
    await tx.execute(sql.DROP_FIRINGS, ids=list(schedule_ids))
    await drop_labels(tx, KIND, schedule_ids)


def managed(row: ScheduleRow, what: str) -> Conflict:
    """Return the error for an action on a schedule that is defined elsewhere."""
    where = "code" if row.file is None else row.file
    return Conflict(
        f"{row.label} is defined in {where} and cannot be {what} by a call; it can be paused, and its"
        " expression can be changed"
    )


async def written(tx: Tx, action: str, names: Sequence[str], status: str) -> None:
    """Publish the change, and write the audit entry last."""
    changes.tell(tx, KIND, [(name, status) for name in names])
    tx.hint(CHANNEL, ANY)
    await audit(tx, action, names)


# --- definitions --------------------------------------------------------------------------------------------


class Synced(NamedTuple):
    """Result of a sync, by the names of schedules."""

    added: Sequence[str]
    changed: Sequence[str]
    removed: Sequence[str]
    refused: Mapping[str, str]
    """Reasons of refused definitions."""


async def sync(
    tx: Tx,
    origin: str,
    definitions: Sequence[NewSchedule],
    targets: ScheduleTargets,
    keeping: Collection[str] | None,
) -> Synced:
    """Store the definitions of one origin, each in the row of its name; overrides stay.

    Schedules of the origin without a definition are deleted, unless they belong to the files in `keeping`.
    None keeps all.
    """
    rows_by_name = {row.name: row for row in await tx.all(sql.LOCK_ORIGIN, origin=origin)}
    await overridden(tx, list(rows_by_name.values()))
    refused: dict[str, str] = {}
    new: list[NewSchedule] = []
    changed: list[ScheduleRow] = []
    for definition in definitions:
        row = rows_by_name.get(definition.name)
        try:
            if row is None:
                new.append(definition)
            elif await _redefine(tx, row, definition):
                changed.append(row)
        except PerdureError as error:
            refused[definition.name or ""] = error.message
    if changed:
        await tx.update_many(sql.SAVE, changed)
    created = await create(tx, new, targets) if new else []
    for definition, answer in zip(new, created, strict=True):
        if isinstance(answer, PerdureError):
            refused[definition.name or ""] = answer.message
    named = {definition.name for definition in definitions}
    gone = [
        row
        for name, row in rows_by_name.items()
        if keeping is not None and name not in named and row.file not in keeping
    ]
    if gone:
        await _drop(tx, [row.id for row in gone])
    touched = [row.id for row in (*changed, *gone)]
    if touched:
        await written(tx, "load_schedules", touched, "updated")
    return Synced(
        [definition.name or "" for definition in new if definition.name not in refused],
        [row.label for row in changed],
        [row.label for row in gone],
        refused,
    )


async def _redefine(tx: Tx, row: ScheduleRow, definition: NewSchedule) -> bool:
    """Write a definition into its row; return whether anything changed."""
    before = _row_to_definition(row)
    row.target, row.file, row.unless = definition.target, definition.file, definition.unless
    row.expression, row.timezone = definition.expression, definition.timezone
    row.enabled, row.end_at = int(definition.enabled), definition.end_at
    row.jitter, row.timeout = definition.jitter, definition.timeout
    row.overlap, row.misfire = definition.overlap, definition.misfire
    row.assistant_id = await _resolve_assistant(tx, definition.assistant)
    row.metadata, row.payload = definition.texts
    after = _row_to_definition(row)
    if after == before:
        return False
    if after.times != before.times:
        _check_comes(tx, row.cron, row.timezone)
        _plan_anew(tx, row)
    row.updated_at = tx.wall
    await set_labels(tx, KIND, {row.id: definition.labels})
    return True


class _Definition(NamedTuple):
    times: tuple[Any, ...]
    rest: tuple[Any, ...]


def _row_to_definition(row: ScheduleRow) -> _Definition:
    return _Definition(
        (row.cron, row.timezone, row.is_enabled, row.end_at, row.jitter),
        (
            row.target,
            row.file,
            row.unless,
            row.expression,
            row.enabled,
            row.timeout,
            row.overlap,
            row.misfire,
            row.assistant_id,
            row.texts,
        ),
    )
