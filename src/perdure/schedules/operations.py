"""Operations on schedules. Rows of schedules are locked before all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import UNSET

from perdure.access.operations import audit, keyed_as
from perdure.assistants.operations import resolve
from perdure.kernel import changes, ids
from perdure.kernel.clock import to_seconds
from perdure.kernel.errors import InvalidInput, NotFound, PerdureError, error_text
from perdure.kernel.storage.filters import Clause, given, order_by, where
from perdure.kernel.storage.labels import drop_labels, labelled, set_labels
from perdure.kernel.storage.port import Tx
from perdure.schedules import model, sql
from perdure.schedules.model import Change, FiringRow, NewSchedule, Prepared, ScheduleRow, Search, Targets
from perdure.schedules.times import next_time

KIND = "schedule"
CHANNEL = "schedules"
ANY = "any"
"""The one key of the channel: a schedule was changed."""
FIRE_ROWS = 100
TRIM_EVERY = 20
"""After how many firings of a schedule its oldest ones are deleted."""


# --- creating and changing ---------------------------------------------------------------------------------


@keyed_as("create_schedule")
async def create(tx: Tx, requests: Sequence[NewSchedule], targets: Targets) -> list[str | PerdureError]:
    """Create schedules; answers each with its id, or with why it cannot be created."""
    answers: list[str | PerdureError] = []
    rows: list[ScheduleRow] = []
    labels: dict[str, Mapping[str, Any]] = {}
    for request in requests:
        try:
            row = await _new_row(tx, request, targets)
        except PerdureError as error:
            answers.append(error)
            continue
        rows.append(row)
        answers.append(row.id)
        labels[row.id] = request.labels
    if rows:
        await tx.write(sql.ADD.of(rows))
        await set_labels(tx, KIND, labels)
        await _written(tx, "create_schedule", [row.id for row in rows], "added")
    return answers


async def _new_row(tx: Tx, request: NewSchedule, targets: Targets) -> ScheduleRow:
    _check_comes(tx, request.expression, request.timezone)
    row = ScheduleRow(
        id=ids.uuid(tx.now, tx.ids),
        target=request.target,
        expression=request.expression,
        timezone=request.timezone,
        enabled=int(request.enabled),
        next_at=None,
        end_at=request.end_at,
        assistant_id=await _assistant_id(tx, request.assistant),
        thread_id=request.thread_id,
        user_id=request.user_id,
        created_at=tx.wall,
        updated_at=tx.wall,
        fired_at=None,
        fired=0,
        refused=0,
        started_id=None,
        error=None,
        metadata=request.texts.metadata,
        payload=request.texts.payload,
    )
    row.next_at = row.comes_next(tx.wall)
    refusal = await targets[row.target].refusal(tx, row.thread_id)
    if refusal is not None:
        raise refusal
    return row


def _check_comes(tx: Tx, expression: str, timezone: str | None) -> None:
    if next_time(expression, timezone, tx.wall) is None:
        raise InvalidInput(f"the schedule {expression!r} never comes")


async def _assistant_id(tx: Tx, name: str | None) -> str | None:
    if name is None:
        return None
    found = (await resolve(tx, [name])).get(name)
    if found is None:
        raise NotFound(f"Assistant {name} not found")
    return found.id


async def update(tx: Tx, schedule_id: str, change: Change) -> bool:
    """Change a schedule; its next time is computed again where that depends on what changes.

    Returns False, and changes nothing, if its metadata or payload are not those that the change is based on.
    """
    row = await _locked(tx, schedule_id)
    if row.texts != change.known:
        return False
    for name in ("expression", "timezone", "end_at"):
        if (value := getattr(change, name)) is not UNSET:
            setattr(row, name, value)
    row.enabled = row.enabled if change.enabled is UNSET else int(change.enabled)
    if change.moves:
        _check_comes(tx, row.expression, row.timezone)
        # After a step back of the clock, a time that has fired does not come again.
        row.next_at = row.comes_next(max(tx.wall, row.fired_at or 0))
    row.metadata, row.payload = change.texts
    row.updated_at = tx.wall
    await tx.update_many(sql.SAVE, [row])
    await set_labels(tx, KIND, {row.id: change.labels})
    await _written(tx, "update_schedule", [row.id], "updated")
    return True


async def delete(tx: Tx, schedule_id: str) -> None:
    """Delete a schedule with its firings; what it has started stays."""
    await _locked(tx, schedule_id)
    await tx.execute(sql.DROP, id=schedule_id)
    await tx.execute(sql.DROP_FIRINGS, id=schedule_id)
    await drop_labels(tx, KIND, [schedule_id])
    await _written(tx, "delete_schedule", [schedule_id], "deleted")


async def _locked(tx: Tx, schedule_id: str) -> ScheduleRow:
    row = await tx.one(sql.LOCK, id=schedule_id)
    if row is None:
        raise not_found(schedule_id)
    return row


def not_found(schedule_id: str) -> NotFound:
    return NotFound(f"Schedule {schedule_id} not found")


async def _written(tx: Tx, action: str, names: Sequence[str], status: str) -> None:
    """Publish what was changed, and write the audit entry last."""
    changes.tell(tx, KIND, [(name, status) for name in names])
    tx.hint(CHANNEL, ANY)
    await audit(tx, action, names)


# --- firing -----------------------------------------------------------------------------------------------


async def due_namespaces(tx: Tx, targets: Sequence[str]) -> list[int]:
    """The namespaces in which something is due."""
    return await tx.all(sql.DUE_NAMESPACES, targets=list(targets))


async def until_next(tx: Tx, targets: Sequence[str]) -> float | None:
    """The seconds until something is due, or None if nothing will be."""
    next_at = await tx.one(sql.NEXT, targets=list(targets))
    return None if next_at is None else max(to_seconds(next_at - tx.wall), 0.0)


async def due(tx: Tx, targets: Sequence[str]) -> list[ScheduleRow]:
    """Some of the schedules that are due."""
    return await tx.all(sql.DUE, targets=list(targets), n=FIRE_ROWS)


async def fire(tx: Tx, prepared: Sequence[Prepared], targets: Targets) -> int:
    """Fire those of some due schedules that no other process is firing; returns how many.

    However many times a schedule has missed, it fires once. What it starts, its next time and the record of
    it are one transaction, so that a time that has come is never lost and never used twice. A schedule that
    has changed since it was prepared is left for the next look.
    """
    starts = {each.row.id: each.start for each in prepared}
    rows = await _claim(tx, prepared)
    answers: dict[str, str | PerdureError] = {}
    by_target: dict[str, list[ScheduleRow]] = {}
    for row in rows:
        start = starts[row.id]
        if model.is_over(cast(int, row.next_at), row.end_at, tx.wall):
            continue
        if isinstance(start, PerdureError):
            answers[row.id] = start
        else:
            by_target.setdefault(row.target, []).append(row)
    for target, wanted in by_target.items():
        started = await targets[target].start(tx, [starts[row.id] for row in wanted])
        answers |= {row.id: each for row, each in zip(wanted, started, strict=True)}
    await _record(tx, rows, answers)
    return len(rows)


async def fail(tx: Tx, prepared: Prepared, error: str) -> None:
    """Record that a schedule could not start anything for the time that has come, and go on."""
    rows = await _claim(tx, [prepared])
    await _record(tx, rows, {row.id: InvalidInput(error) for row in rows})


async def _claim(tx: Tx, prepared: Sequence[Prepared]) -> list[ScheduleRow]:
    known = {each.row.id: each for each in prepared}
    rows = await tx.all(sql.CLAIM, ids=sorted(known))
    return sorted(
        (row for row in rows if known[row.id].is_current(row)), key=lambda row: (row.next_at, row.id)
    )


async def _record(tx: Tx, rows: Sequence[ScheduleRow], answers: Mapping[str, str | PerdureError]) -> None:
    """Write down what came of it, and when each comes next."""
    firings: list[FiringRow] = []
    for row in rows:
        due_at = cast(int, row.next_at)
        row.next_at = row.comes_next(max(tx.wall, due_at))
        if row.id in answers:
            answer = answers[row.id]
            _note(row, answer, tx.wall)
            started_id = None if isinstance(answer, PerdureError) else answer
            firings.append(FiringRow(row.id, due_at, tx.wall, started_id, row.error))
    if rows:
        await tx.update_many(sql.MOVE, list(rows))
    if firings:
        await tx.write(sql.ADD_FIRINGS.of(firings))
    for row in rows:
        if row.id in answers and (row.fired + row.refused) % TRIM_EVERY == 0:
            await tx.execute(sql.TRIM_FIRINGS, id=row.id, last=model.KEPT_FIRINGS - 1)
    changes.tell(tx, KIND, [(name, "fired") for name in answers])


def _note(row: ScheduleRow, answer: str | PerdureError, now: int) -> None:
    row.fired_at = now
    if isinstance(answer, PerdureError):
        row.refused, row.error = row.refused + 1, error_text(answer)
    else:
        row.fired, row.started_id, row.error = row.fired + 1, answer, None


# --- reading ----------------------------------------------------------------------------------------------


async def get(tx: Tx, schedule_id: str) -> ScheduleRow:
    """A schedule; NotFound if there is none."""
    row = await tx.one(sql.GET, ids=[schedule_id])
    if row is None:
        raise not_found(schedule_id)
    return row


async def firings(tx: Tx, schedule_id: str, limit: int, offset: int) -> list[FiringRow]:
    """The latest firings of a schedule, the newest first."""
    await get(tx, schedule_id)
    return await tx.all(sql.LIST_FIRINGS, id=schedule_id, limit=limit, offset=offset)


async def search(tx: Tx, query: Search) -> tuple[list[ScheduleRow], int]:
    """A page of schedules, and how many there are in all."""
    clause = _wanted(query)
    ties = "created_at DESC, id DESC" if query.sort_order == "desc" else "created_at, id"
    order = order_by(sql.FIELDS, query.sort_by, query.sort_order, ties)
    page, values = sql.LIST.page(clause, order, query.limit, query.offset)
    rows = await tx.all(page, **values)
    total = await tx.one(sql.LIST.count(clause), **clause.values)
    return rows, total or 0


def _wanted(query: Search) -> Clause:
    conditions = given(
        ("assistant_id", "exact", query.assistant_id),
        ("thread_id", "exact", query.thread_id),
        ("enabled", "exact", None if query.enabled is None else int(query.enabled)),
    )
    clause = where(sql.FIELDS, conditions, "and")
    labels = labelled(KIND, query.metadata)
    return Clause(clause.sql + " AND " + labels.sql, {**clause.values, **labels.values})
