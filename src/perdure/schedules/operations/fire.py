"""Operations that fire schedules, at their time or by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from perdure.kernel import changes
from perdure.kernel.clock import to_seconds
from perdure.kernel.errors import InvalidInput, PerdureError, error_text
from perdure.kernel.storage.port import Tx
from perdure.schedules import model, sql
from perdure.schedules.model import (
    CONCURRENT,
    FAILED,
    MANUAL,
    ONCE,
    RUNNING,
    SCHEDULE,
    SKIPPED,
    ScheduleTargets,
    status_after,
)
from perdure.schedules.operations.edit import KIND
from perdure.schedules.operations.queries import locked, overridden
from perdure.schedules.operations.settle import Outcomes, apply
from perdure.schedules.rows import FiringRow, Prepared, ScheduleRow
from perdure.schedules.tables import FIRINGS
from perdure.service.audit import audit
from perdure.service.callers import format_actor
from perdure.service.idempotency import keyed_as

STARTED = "started"
CRON_FIRED = "schedules.fired"
"""Name of the counter of firings, by result."""
FIRING_RESULTS = (STARTED, SKIPPED, FAILED)
FIRE_ROWS = 100
TRIM_EVERY = 20
"""Number of firings of a schedule between two deletions of its oldest ones."""


def _get_result(firing: FiringRow) -> str:
    if firing.started_id is not None:
        return STARTED
    return FAILED if firing.skipped is None else SKIPPED


async def due_namespaces(tx: Tx, targets: Sequence[str]) -> list[int]:
    """Return the namespaces with due schedules."""
    return await tx.all(sql.DUE_NAMESPACES, targets=list(targets))


async def until_next(tx: Tx, targets: Sequence[str]) -> float | None:
    """Return the seconds until the next schedule is due, or None."""
    next_at = await tx.one(sql.NEXT, targets=list(targets))
    return None if next_at is None else max(to_seconds(next_at - tx.wall), 0.0)


async def due(tx: Tx, targets: Sequence[str]) -> list[ScheduleRow]:
    """Return a batch of due schedules."""
    return await tx.all(sql.DUE, targets=list(targets), n=FIRE_ROWS)


class Fired(NamedTuple):
    """Number of schedules looked at, and the started work."""

    looked: int
    more: bool
    """True if some of the schedules are due again at once."""
    started: Sequence[FiringRow]


async def fire(tx: Tx, prepared: Sequence[Prepared], targets: ScheduleTargets, outcomes: Outcomes) -> Fired:
    """Fire the due schedules that no other process is firing.

    Started work, next times and firings are written in one transaction, so that a due time is never lost and
    never fires twice. A schedule that has changed since it was prepared is left for the next look. The
    `outcomes` of open firings are written first, because open firings can prevent a start.
    """
    prepared_by_id = {schedule.row.id: schedule for schedule in prepared}
    rows = await _claim(tx, prepared)
    await overridden(tx, rows)
    await apply(tx, rows, outcomes)
    recording = _Recording(tx)
    starting: list[ScheduleRow] = []
    for row in rows:
        event = _get_event(tx, row, prepared_by_id[row.id].unmet)
        if model.is_over(cast(int, row.instant), row.end_at, tx.wall):
            continue
        if event == "started":
            starting.append(row)
        else:
            recording.skipped(row, event)
    answers = await _start(tx, {row.id: prepared_by_id[row.id].start for row in starting}, starting, targets)
    for row in starting:
        recording.answered(row, answers[row.id])
    for row in rows:
        enabled_misfire = (row.misfire or ONCE) if row.is_enabled else ONCE
        row.plan(model.counts_from(cast(int, row.instant), enabled_misfire, tx.wall))
    await recording.write(rows)
    more = any(row.next_at is not None and row.next_at <= tx.wall for row in rows)
    return Fired(len(rows), more, [firing for firing in recording.firings if firing.open])


def _get_event(tx: Tx, row: ScheduleRow, unmet: bool) -> str:
    return model.skip_event(
        enabled=row.is_enabled,
        overlap=row.overlap or CONCURRENT,
        misfire=row.misfire or ONCE,
        late=tx.wall - cast(int, row.next_at),
        unmet=unmet,
        running=row.running or 0,
    )


async def _start(
    tx: Tx, starts: Mapping[str, Any], rows: Sequence[ScheduleRow], targets: ScheduleTargets
) -> dict[str, str | PerdureError]:
    """Start the prepared work of schedules, one call per target."""
    answers: dict[str, str | PerdureError] = {}
    by_target: dict[str, list[ScheduleRow]] = {}
    for row in rows:
        start = starts[row.id]
        if isinstance(start, PerdureError):
            answers[row.id] = start
        else:
            by_target.setdefault(row.target, []).append(row)
    for target, wanted in by_target.items():
        started = await targets[target].start(tx, [starts[row.id] for row in wanted])
        answers |= {row.id: answer for row, answer in zip(wanted, started, strict=True)}
    return answers


async def fail(tx: Tx, prepared: Prepared, error: str) -> None:
    """Record a firing that could not start, and continue with the next time."""
    rows = await _claim(tx, [prepared])
    await overridden(tx, rows)
    recording = _Recording(tx)
    for row in rows:
        recording.answered(row, InvalidInput(error))
        row.plan(max(cast(int, row.instant), tx.wall))
    await recording.write(rows)


async def _claim(tx: Tx, prepared: Sequence[Prepared]) -> list[ScheduleRow]:
    prepared_by_id = {schedule.row.id: schedule for schedule in prepared}
    rows = await tx.all(sql.CLAIM, ids=sorted(prepared_by_id))
    return sorted(
        (row for row in rows if prepared_by_id[row.id].is_current(row)), key=lambda row: (row.next_at, row.id)
    )


# --- by hand ----------------------------------------------------------------------------------------------


class Trigger(NamedTuple):
    """A schedule to be fired now, as read, with the prepared input of its target."""

    row: ScheduleRow
    start: Any
    outcomes: Outcomes
    """Outcomes of its open firings."""


class Triggered(NamedTuple):
    """The time of a firing by hand; None if the schedule had changed since it was prepared."""

    schedule_id: str
    due_at: int | None


@keyed_as("trigger_schedule", Triggered)
async def trigger(
    tx: Tx, triggers: Sequence[Trigger], targets: ScheduleTargets
) -> list[Triggered | PerdureError]:
    """Fire schedules now, paused or not. Their next times stay as they are."""
    await tx.all(sql.LOCK, ids=sorted({wanted.row.id for wanted in triggers}))
    answers: list[Triggered | PerdureError] = []
    for wanted in triggers:
        try:
            answers.append(await _trigger(tx, wanted, targets))
        except PerdureError as error:
            answers.append(error)
    return answers


async def _trigger(tx: Tx, wanted: Trigger, targets: ScheduleTargets) -> Triggered:
    row = await locked(tx, wanted.row.id)
    if (row.updated_at, row.texts) != (wanted.row.updated_at, wanted.row.texts):
        return Triggered(row.id, None)
    await apply(tx, [row], wanted.outcomes)
    due_at = tx.wall
    while await tx.existing(FIRINGS, [(tx.ns, row.id, due_at)]):
        due_at += 1
    recording = _Recording(tx, source=MANUAL, actor=format_actor(tx.actor))
    if row.running and row.overlap == model.SKIP:
        recording.skipped(row, "overlap", due_at)
    else:
        answers = await _start(tx, {row.id: wanted.start}, [row], targets)
        recording.answered(row, answers[row.id], due_at)
    await recording.write([row])
    await audit(tx, "trigger_schedule", [row.id])
    return Triggered(row.id, due_at)


# --- records ----------------------------------------------------------------------------------------------


class _Recording:
    """Firings to be written, with the changes of their schedules."""

    def __init__(self, tx: Tx, source: str = SCHEDULE, actor: str | None = None) -> None:
        self._tx = tx
        self._source = source
        self._actor = actor
        self.firings: list[FiringRow] = []

    def skipped(self, row: ScheduleRow, event: str, due_at: int | None = None) -> None:
        """Record a time that starts nothing. Running work is not touched."""
        passed = (event,) if event == model.PAUSED else ("not paused", event)
        status = model.get_firing_result(status_after(*passed))
        row.fired_at, row.skipped = self._tx.wall, (row.skipped or 0) + 1
        row.last_result, row.last_error = status, event
        self._add(row, due_at, status=status, skipped=event)

    def answered(self, row: ScheduleRow, answer: str | PerdureError, due_at: int | None = None) -> None:
        """Record the started work, or why it could not start."""
        row.fired_at = self._tx.wall
        if isinstance(answer, PerdureError):
            row.refused, row.error = row.refused + 1, error_text(answer)
            row.last_result, row.last_error = FAILED, row.error
            self._add(row, due_at, status=status_after("not paused", "refused"), error=row.error)
            return
        row.fired, row.started_id, row.error = row.fired + 1, answer, None
        row.running = (row.running or 0) + 1
        self._add(row, due_at, status=status_after("not paused", "started"), started_id=answer)

    def _add(
        self,
        row: ScheduleRow,
        due_at: int | None,
        *,
        status: str,
        started_id: str | None = None,
        skipped: str | None = None,
        error: str | None = None,
    ) -> None:
        now, is_open = self._tx.wall, status == RUNNING
        self.firings.append(
            FiringRow(
                schedule_id=row.id,
                due_at=cast(int, row.instant) if due_at is None else due_at,
                fired_at=now,
                started_id=started_id,
                error=error,
                source=self._source,
                actor=self._actor,
                target=row.target,
                status=status,
                skipped=skipped,
                ended_at=None if is_open else now,
                duration=None if is_open else 0,
                open=1 if is_open else None,
                metadata=None,
            )
        )

    async def write(self, rows: Sequence[ScheduleRow]) -> None:
        """Write schedules and firings; delete the oldest firings of a schedule once in a while."""
        if self.firings:
            await self._tx.write(sql.ADD_FIRINGS.of(self.firings))
        for firing in self.firings:
            self._tx.count(CRON_FIRED, _get_result(firing))
        fired = {firing.schedule_id for firing in self.firings}
        for row in rows:
            if row.id in fired and (row.fired + row.refused + (row.skipped or 0)) % TRIM_EVERY == 0:
                await self._trim(row)
        if rows:
            await self._tx.update_many(sql.MOVE, list(rows))
        changes.tell(self._tx, KIND, [(name, "fired") for name in sorted(fired)])

    async def _trim(self, row: ScheduleRow) -> None:
        """Delete old firings. Skipped ones are counted apart, so that they do not displace started ones."""
        last = model.KEPT_FIRINGS - 1
        forgotten = await self._tx.execute(sql.TRIM_OPEN, id=row.id, last=last)
        row.running = max((row.running or 0) - forgotten, 0)
        await self._tx.execute(sql.TRIM_FIRINGS, id=row.id, last=last)
        await self._tx.execute(sql.TRIM_SKIPPED, id=row.id, last=last)
