"""Operations on schedules. Rows of schedules are locked before all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET

from perdure.access.operations import audit
from perdure.assistants.operations import resolve
from perdure.kernel import changes, ids
from perdure.kernel.clock import to_seconds
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput, NotFound, PerdureError
from perdure.kernel.storage.filters import Clause, given, order_by, where
from perdure.kernel.storage.labels import drop_labels, labelled, set_labels
from perdure.kernel.storage.port import Row, Tx
from perdure.schedules import model, sql
from perdure.schedules.model import Change, NewSchedule, Order, ScheduleRow, Search, Targets
from perdure.schedules.times import next_time

KIND = "schedule"
CHANNEL = "schedules"
ANY = "any"
"""The one key of the channel: something may be due sooner than was known."""
FIRE_ROWS = 100
TRIM_EVERY = 20
"""After so many firings of a schedule its oldest ones are dropped."""


# --- making and changing ----------------------------------------------------------------------------------


async def create(tx: Tx, requests: Sequence[NewSchedule], targets: Targets) -> list[str | PerdureError]:
    """Create schedules; answers each with its id, or with why it cannot be created."""
    answers: list[str | PerdureError] = []
    rows: list[ScheduleRow] = []
    labels: dict[str, Mapping[str, Any]] = {}
    for request in requests:
        row = await _new_row(tx, request, targets)
        if isinstance(row, PerdureError):
            answers.append(row)
            continue
        rows.append(row)
        answers.append(row.id)
        labels[row.id] = request.metadata
    if rows:
        await tx.write((sql.ADD, [(tx.ns, *msgspec.structs.astuple(row)) for row in rows]))
        await set_labels(tx, KIND, labels)
        await _written(tx, "create_schedule", [row.id for row in rows], "added")
    return answers


async def _new_row(tx: Tx, request: NewSchedule, targets: Targets) -> ScheduleRow | PerdureError:
    try:
        return await _checked_row(tx, request, targets)
    except PerdureError as error:
        return error


async def _checked_row(tx: Tx, request: NewSchedule, targets: Targets) -> ScheduleRow:
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
        created_at=tx.now,
        updated_at=tx.now,
        fired_at=None,
        fired=0,
        refused=0,
        started_id=None,
        error=None,
        metadata=encode_json(request.metadata),
        payload=encode_json(request.payload),
    )
    row.next_at = row.comes_next(tx.now)
    refusal = await targets[row.target].refusal(tx, row.order(tx.now))
    if refusal is not None:
        raise refusal
    return row


def _check_comes(tx: Tx, expression: str, timezone: str | None) -> None:
    if next_time(expression, timezone, tx.now) is None:
        raise InvalidInput(f"the schedule {expression!r} never comes")


async def _assistant_id(tx: Tx, name: str | None) -> str | None:
    if name is None:
        return None
    found = (await resolve(tx, [name])).get(name)
    if found is None:
        raise NotFound(f"Assistant {name} not found")
    return found.assistant_id


async def update(tx: Tx, schedule_id: str, change: Change, targets: Targets) -> None:
    """Change a schedule; its next time is found anew where that depends on what changes."""
    row = await _locked(tx, schedule_id)
    order = row.order(tx.now)
    metadata, payload = {**order.metadata, **change.metadata}, {**order.payload, **change.payload}
    targets[row.target].check(msgspec.structs.replace(order, metadata=metadata, payload=payload))
    for name in ("expression", "timezone", "end_at"):
        if (value := getattr(change, name)) is not UNSET:
            setattr(row, name, value)
    row.enabled = row.enabled if change.enabled is UNSET else int(change.enabled)
    if change.moves:
        _check_comes(tx, row.expression, row.timezone)
        row.next_at = row.comes_next(tx.now)
    row.metadata, row.payload = encode_json(metadata), encode_json(payload)
    await _save(tx, row)
    await set_labels(tx, KIND, {row.id: metadata})
    await _written(tx, "update_schedule", [row.id], "updated")


async def _save(tx: Tx, row: ScheduleRow) -> None:
    times = (row.expression, row.timezone, row.enabled, row.next_at, row.end_at, tx.now)
    await tx.update_many(sql.SAVE, [(*times, row.metadata, row.payload, tx.ns, row.id)])


async def delete(tx: Tx, schedule_id: str) -> None:
    """Remove a schedule with its firings; what it has started stays."""
    await _locked(tx, schedule_id)
    await tx.execute(sql.DROP, id=schedule_id)
    await tx.execute(sql.DROP_FIRINGS, id=schedule_id)
    await drop_labels(tx, KIND, [schedule_id])
    await _written(tx, "delete_schedule", [schedule_id], "deleted")


async def _locked(tx: Tx, schedule_id: str) -> ScheduleRow:
    row = await tx.one(sql.LOCK, id=schedule_id)
    if row is None:
        raise not_found(schedule_id)
    return ScheduleRow(*row)


def not_found(schedule_id: str) -> NotFound:
    return NotFound(f"Schedule {schedule_id} not found")


async def _written(tx: Tx, action: str, names: Sequence[str], status: str) -> None:
    """Tell of what was changed, and write down who did it, as the last thing."""
    changes.tell(tx, KIND, [(name, status) for name in names])
    tx.hint(CHANNEL, ANY)
    await audit(tx, action, names)


# --- firing -----------------------------------------------------------------------------------------------


async def due_namespaces(tx: Tx, targets: Sequence[str]) -> list[int]:
    """The namespaces in which something is due."""
    return [int(row[0]) for row in await tx.all(sql.DUE_NAMESPACES, targets=list(targets))]


async def until_next(tx: Tx, targets: Sequence[str]) -> float | None:
    """The seconds until something is due, or None if nothing will be."""
    row = await tx.one(sql.NEXT, targets=list(targets))
    return None if row is None or row[0] is None else max(to_seconds(row[0] - tx.now), 0.0)


async def due(tx: Tx, targets: Sequence[str]) -> list[tuple[str, int]]:
    """Some of the schedules that are due, each with the time that has come."""
    rows = await tx.all(sql.DUE, targets=list(targets), n=FIRE_ROWS)
    return [(row[0], row[1]) for row in rows]


async def fire(tx: Tx, targets: Targets) -> int:
    """Fire some of the schedules that are due and that nobody else is firing; returns how many.

    However many times a schedule has missed, it fires once. What it starts, its next time and the record of
    it are one transaction, so that a time that has come is never lost and never used twice.
    """
    rows = [ScheduleRow(*row) for row in await tx.all(sql.CLAIM, targets=targets.names(), n=FIRE_ROWS)]
    await _fire(tx, rows, targets)
    return len(rows)


async def fire_one(tx: Tx, schedule_id: str, due_at: int, targets: Targets) -> None:
    """Fire a schedule for the time that has come, unless somebody else has."""
    row = await tx.one(sql.CLAIM_ONE, id=schedule_id, due_at=due_at)
    await _fire(tx, [ScheduleRow(*row)] if row else [], targets)


async def fail_one(tx: Tx, schedule_id: str, due_at: int, error: str) -> None:
    """Record that a schedule could not start anything for the time that has come, and go on."""
    row = await tx.one(sql.CLAIM_ONE, id=schedule_id, due_at=due_at)
    if row is not None:
        await _record(tx, [ScheduleRow(*row)], {schedule_id: InvalidInput(error)})


async def _fire(tx: Tx, rows: Sequence[ScheduleRow], targets: Targets) -> None:
    by_target: dict[str, list[Order]] = {}
    for row in rows:
        due_at = cast(int, row.next_at)
        if not model.is_over(due_at, row.end_at, tx.now):
            by_target.setdefault(row.target, []).append(row.order(due_at))
    answers: dict[str, str | PerdureError] = {}
    for target, orders in by_target.items():
        started = await targets[target].start(tx, orders)
        answers |= {order.schedule_id: each for order, each in zip(orders, started, strict=True)}
    await _record(tx, rows, answers)


async def _record(tx: Tx, rows: Sequence[ScheduleRow], answers: Mapping[str, str | PerdureError]) -> None:
    """Write down what came of it, and when each comes next."""
    firings: list[tuple[Any, ...]] = []
    for row in rows:
        due_at = cast(int, row.next_at)
        row.next_at = row.comes_next(max(tx.now, due_at))
        if row.id in answers:
            _note(row, answers[row.id], tx.now)
            firings.append((tx.ns, row.id, due_at, tx.now, _started(answers[row.id]), row.error))
    moved = [
        (row.next_at, row.fired_at, row.fired, row.refused, row.started_id, row.error, tx.ns, row.id)
        for row in rows
    ]
    if moved:
        await tx.update_many(sql.MOVE, moved)
    if firings:
        await tx.write((sql.ADD_FIRINGS, firings))
    for row in rows:
        if row.id in answers and (row.fired + row.refused) % TRIM_EVERY == 0:
            await tx.execute(sql.TRIM_FIRINGS, id=row.id, last=model.KEPT_FIRINGS - 1)
    changes.tell(tx, KIND, [(name, "fired") for name in answers])


def _note(row: ScheduleRow, answer: str | PerdureError, now: int) -> None:
    row.fired_at = now
    if isinstance(answer, PerdureError):
        row.refused, row.error = row.refused + 1, model.error_text(answer)
    else:
        row.fired, row.started_id, row.error = row.fired + 1, answer, None


def _started(answer: str | PerdureError) -> str | None:
    return None if isinstance(answer, PerdureError) else answer


# --- reading ----------------------------------------------------------------------------------------------


async def get(tx: Tx, schedule_ids: Sequence[str]) -> list[ScheduleRow | None]:
    rows = {row[0]: ScheduleRow(*row) for row in await tx.all(sql.GET, ids=list(schedule_ids))}
    return [rows.get(schedule_id) for schedule_id in schedule_ids]


async def firings(tx: Tx, schedule_id: str, limit: int, offset: int) -> Sequence[Row]:
    """What came of a schedule's latest times, the newest first."""
    if (await get(tx, [schedule_id]))[0] is None:
        raise not_found(schedule_id)
    return await tx.all(sql.LIST_FIRINGS, id=schedule_id, limit=limit, offset=offset)


async def search(tx: Tx, query: Search) -> tuple[list[ScheduleRow], int]:
    """A page of schedules, and how many there are in all."""
    clause = _wanted(query)
    ties = "created_at DESC, id DESC" if query.sort_order == "desc" else "created_at, id"
    order = order_by(sql.FIELDS, query.sort_by, query.sort_order, ties)
    page, values = sql.LIST.page(clause, order, query.limit, query.offset)
    rows = [ScheduleRow(*row) for row in await tx.all(page, **values)]
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
