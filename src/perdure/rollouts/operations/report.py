"""Reports on attempts, explicit changes of rollouts, and sweeps of the watchdog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from perdure.kernel.changes import tell
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.model import (
    ATTEMPT,
    ENDED,
    LIVE,
    REPORTED,
    SUCCEEDED,
    UNRESPONSIVE,
    Kinds,
    lapse_event,
    reported,
    rollout_event,
    set_to,
)
from perdure.rollouts.operations.completions import complete
from perdure.rollouts.operations.conditions import LINES_LOCKED, NOT_OVERDUE
from perdure.rollouts.operations.lines import leave
from perdure.rollouts.operations.work import LockedRollouts
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.rollouts.rows import AttemptRecordRow, AttemptRow, RolloutBodies, RolloutRecordRow, RolloutRow
from perdure.service.audit import audit
from perdure.service.conditions import requires

SWEEP_ROWS = 500


class AttemptReport(msgspec.Struct, frozen=True):
    """A caller's report on an attempt; fields that are UNSET do not change."""

    rollout_id: str
    attempt_id: str
    status: str | UnsetType = UNSET
    worker_id: str | UnsetType | None = UNSET
    last_heartbeat_time: int | UnsetType | None = UNSET
    metadata: str | UnsetType | None = UNSET


@requires(NOT_OVERDUE, LINES_LOCKED)
async def report_attempts(
    tx: Tx, reports: Sequence[AttemptReport], kind: str, kinds: Kinds, lined: bool = False
) -> list[AttemptRecordRow | NotFound]:
    """Apply reports in order; return the attempt of each report, or the reason why it has no attempt."""
    completed = None if lined else await _complete(tx, reports, kind, kinds)
    if completed is not None:
        return completed
    work = LockedRollouts(tx, kinds)
    await work.load([report.rollout_id for report in reports], [kind], lined=lined)
    workers = WorkerChanges(tx, kinds)
    answers: list[AttemptRecordRow | NotFound] = []
    for report in reports:
        try:
            rollout = work.rollout(report.rollout_id)
            attempt = work.attempt(rollout, report.attempt_id)
        except NotFound as error:
            answers.append(error)
            continue
        _apply(work, workers, attempt, report)
        answers.append(attempt.view)
    await save_all(work, workers, lined)
    updated = [row for row in answers if not isinstance(row, NotFound)]
    await audit(tx, "update_attempt", [row.rollout_id + "/" + row.id for row in updated])
    return answers


async def _complete(
    tx: Tx, reports: Sequence[AttemptReport], kind: str, kinds: Kinds
) -> list[AttemptRecordRow | NotFound] | None:
    """Apply reports that all report success and nothing more; return None if they do not."""
    if kinds[kind].tells_of_ends or not all(map(_is_success, reports)):
        return None
    attempts = {report.rollout_id: report.attempt_id for report in reports}
    if len(attempts) < len(reports):
        return None
    views = await complete(tx, attempts, kind, kinds)
    if views is None:
        return None
    await audit(tx, "update_attempt", (rollout_id + "/" + row.id for rollout_id, row in views.items()))
    return [views[report.rollout_id] for report in reports]


def _is_success(report: AttemptReport) -> bool:
    """Return whether a report says that an attempt has succeeded, and nothing more."""
    return (
        report.status == SUCCEEDED
        and report.worker_id is UNSET
        and report.last_heartbeat_time is UNSET
        and report.metadata is UNSET
    )


async def save_all(work: LockedRollouts, workers: WorkerChanges, lined: bool) -> None:
    """Write everything back; writes of kinds' handlers and lines come before workers and counts."""
    if lined or work.has_listeners:
        await work.save()
        if lined:
            await leave(work)
        await work.tx.defer(*await workers.changed())
    else:
        await work.save(*await workers.changed())
    work.add_counts()


def _apply(work: LockedRollouts, workers: WorkerChanges, attempt: AttemptRow, report: AttemptReport) -> None:
    attempt.dirty = True
    if report.worker_id is not UNSET:
        attempt.worker_id = report.worker_id
    if report.last_heartbeat_time is not UNSET:
        attempt.beat(report.last_heartbeat_time, work.rollouts[attempt.rollout_id].limits)
    if report.metadata is not UNSET:
        attempt.metadata = report.metadata
    if report.status is not UNSET:
        set_status(work, attempt, report.status)
    if report.status is not UNSET or report.worker_id is not UNSET:
        workers.follow(attempt)


def set_status(work: LockedRollouts, attempt: AttemptRow, status: str) -> None:
    """Set the reported status of an attempt; a repeated status changes nothing."""
    if status == attempt.status:
        return
    attempt.status = ATTEMPT.step(attempt.status, reported(status))
    attempt.end_time = work.tx.now if status in REPORTED else None
    attempt.reason = None if status in LIVE else status
    rollout = work.rollouts[attempt.rollout_id]
    if work.is_latest(attempt):
        work.move(rollout, rollout_event(rollout.limits, status, work.tries(attempt), lapsed=False), status)
        attempt.watch(rollout.limits)


class RolloutChange(msgspec.Struct, frozen=True):
    """A caller's change of a rollout; bodies are encoded, and fields that are UNSET do not change."""

    rollout_id: str
    status: str | UnsetType = UNSET
    mode: str | UnsetType | None = UNSET
    resources_id: str | UnsetType | None = UNSET
    config: str | UnsetType = UNSET
    metadata: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    only_from: frozenset[str] | None = None
    """The statuses in which the rollout may be changed; None for any."""

    @property
    def edits(self) -> bool:
        return any(
            value is not UNSET
            for value in (self.mode, self.resources_id, self.config, self.metadata, self.input)
        )


@requires(NOT_OVERDUE, LINES_LOCKED)
async def change_rollouts(
    tx: Tx, changes: Sequence[RolloutChange], kind: str, kinds: Kinds, lined: bool = False
) -> list[RolloutRecordRow | NotFound | Conflict]:
    """Apply the change of each caller; the answers are rollouts."""
    work = LockedRollouts(tx, kinds)
    await work.load([change.rollout_id for change in changes], [kind], lined=lined)
    refused: dict[int, Conflict] = {}
    for number, change in enumerate(changes):
        rollout = work.rollouts.get(change.rollout_id)
        if rollout is None:
            continue
        if change.only_from is not None and rollout.status not in change.only_from:
            refused[number] = _refuse_status(rollout.status, change)
            continue
        if change.edits:
            await _edit(tx, change, kind)
        if change.config is not UNSET:
            rollout.config = change.config
            for attempt in work.attempts[rollout.id][-1:]:
                attempt.watch(rollout.limits)
        if change.status is not UNSET:
            work.move(rollout, set_to(change.status))
    await save_all(work, WorkerChanges(tx), lined)
    edited = [work.rollouts[c.rollout_id] for c in changes if c.edits and c.rollout_id in work.rollouts]
    tell(tx, "rollout", ((rollout.id, rollout.status) for rollout in edited))
    views = {row.id: row for row in await tx.all(sql.GET_ROLLOUTS, ids=list(work.rollouts), kinds=[kind])}
    answers = [
        refused.get(number)
        or views.get(change.rollout_id)
        or NotFound(f"Rollout {change.rollout_id} not found: Item does not exist")
        for number, change in enumerate(changes)
    ]
    await audit(tx, "update_rollout", [row.id for row in answers if not isinstance(row, Exception)])
    return answers


def _refuse_status(status: str, change: RolloutChange) -> Conflict:
    allowed = " or ".join(sorted(change.only_from or ()))
    return Conflict(
        f"Rollout {change.rollout_id} is {status}; only one that is {allowed} can be set to {change.status}"
    )


async def _edit(tx: Tx, change: RolloutChange, kind: str) -> None:
    """Write the bodies; bodies that are not given keep their values."""
    (row,) = await tx.all(sql.GET_ROLLOUTS, ids=[change.rollout_id], kinds=[kind])
    bodies = RolloutBodies(
        id=row.id,
        mode=_or(change.mode, row.mode),
        resources_id=_or(change.resources_id, row.resources_id),
        config=_or(change.config, row.config),
        metadata=_or(change.metadata, row.metadata),
        input=_or(change.input, row.input),
    )
    await tx.update_many(sql.EDIT_ROLLOUT, [bodies])


def _or(value: Any, current: Any) -> Any:
    return current if value is UNSET else value


class WatchdogSweep(NamedTuple):
    """Number of rollouts that the watchdog checked, and the new statuses of their attempts."""

    looked: int
    statuses: tuple[str, ...] = ()


async def sweep(tx: Tx, kinds: Kinds, patient: bool, lined: bool) -> WatchdogSweep:
    """End overdue attempts of the namespace and the given kinds, 500 rollouts at a time.

    Only one sweep of a namespace runs at a time. Without `patient`, return at once if another sweep runs.
    """
    if not await tx.all(sql.LOCK_SWEEP if patient else sql.TRY_SWEEP):
        return WatchdogSweep(0)
    overdue = await tx.all(sql.OVERDUE_ROLLOUTS, kinds=kinds.names(), n=SWEEP_ROWS)
    if not overdue:
        return WatchdogSweep(0)
    work = LockedRollouts(tx, kinds)
    await work.load(overdue, kinds.names(), lined=lined)
    lapsed: list[AttemptRow] = []
    for rollout_id, attempts in work.attempts.items():
        for attempt in attempts:
            if (
                attempt.check_at is not None
                and attempt.check_at <= tx.now
                and _check(work, rollout_id, attempt)
            ):
                lapsed.append(attempt)
    workers = WorkerChanges(tx, kinds)
    for attempt in lapsed:
        workers.follow(attempt)
    await save_all(work, workers, lined)
    return WatchdogSweep(len(overdue), tuple(attempt.status for attempt in lapsed))


async def end_workers_elsewhere(tx: Tx, process: str, kinds: Kinds) -> int:
    """End attempts of workers of an ended process in every namespace, 500 at a time.

    The ended process had opened the database, which only one process can open at a time. Return the number
    of such workers; each worker is counted again until it has no attempt.
    """
    workers = await tx.all(sql.WORKERS_ELSEWHERE, process=process, n=SWEEP_ROWS)
    here = tx.ns
    try:
        for ns in sorted({row.ns for row in workers}):
            tx.ns = ns
            await _end_attempts(tx, [row.id for row in workers if row.ns == ns], kinds)
    finally:
        tx.ns = here
    return len(workers)


async def _end_attempts(tx: Tx, worker_ids: Sequence[str], kinds: Kinds) -> None:
    rollout_ids = await tx.all(sql.WATCHED_OF_WORKERS, ids=worker_ids, n=SWEEP_ROWS)
    work = LockedRollouts(tx, kinds)
    await work.load(rollout_ids, kinds.names(), lined=True)
    lost = [
        attempt
        for rollout_id in rollout_ids
        for attempt in work.attempts.get(rollout_id, ())
        if attempt.worker_id in worker_ids and _check(work, rollout_id, attempt, lost=True)
    ]
    workers = WorkerChanges(tx, kinds)
    for attempt in lost:
        workers.follow(attempt)
    if len(rollout_ids) < SWEEP_ROWS:
        for worker_id in worker_ids:
            workers.stopped(worker_id)
    await save_all(work, workers, True)


def _check(work: LockedRollouts, rollout_id: str, attempt: AttemptRow, *, lost: bool = False) -> bool:
    """Compare the latest attempt with its exact deadline: end it, or set the time of the next check.

    An attempt that is known to be `lost` ends as unresponsive.
    """
    rollout = work.rollouts[rollout_id]
    if not work.is_latest(attempt):
        attempt.check_at, attempt.dirty = None, True
        return False
    if rollout.status in ENDED and work.kinds[rollout.kind].final:
        give_up(work, rollout, attempt)
        return True
    event = lapse_event(
        rollout.limits,
        work.tx.now,
        attempt.start_time,
        attempt.last_heartbeat_time,
        earliest=work.kinds[rollout.kind].final,
    )
    event = "silent" if lost and event is None else event
    if event is not None and work.kinds[rollout.kind].unreported:
        set_status(work, attempt, SUCCEEDED)
        return True
    if event is None or not ATTEMPT.moves(attempt.status, event):
        attempt.watch(rollout.limits)
        return False
    attempt.status = ATTEMPT.step(attempt.status, event)
    attempt.reason = attempt.status
    attempt.watch(rollout.limits)
    if attempt.status == UNRESPONSIVE and work.lapses(rollout_id) < rollout.limits.free_lapses:
        attempt.charged = 0
    work.move(
        rollout,
        rollout_event(rollout.limits, attempt.status, work.tries(attempt), lapsed=True),
        attempt.status,
    )
    return True


def give_up(work: LockedRollouts, rollout: RolloutRow, attempt: AttemptRow) -> None:
    """End an attempt whose rollout had ended, because its executor did not stop in time."""
    if attempt.status in LIVE:
        attempt.status = ATTEMPT.step(attempt.status, "silent")
        attempt.reason = attempt.status
        work.stopped.append(rollout)
    attempt.check_at, attempt.dirty = None, True


async def has_future_deadlines(tx: Tx) -> bool:
    """Return whether a deadline counts from a time in the future: the clock was set back meanwhile."""
    return bool(await tx.one(sql.HAS_FUTURE_ATTEMPTS) or await tx.one(sql.HAS_FUTURE_DELAYS))


async def shorten_deadlines(tx: Tx) -> int:
    """Let future deadlines count from now."""
    return await tx.execute(sql.SHORTEN_ATTEMPTS) + await tx.execute(sql.SHORTEN_DELAYS)


async def overdue_namespaces(tx: Tx, kinds: Kinds) -> list[int]:
    """Return the namespaces with overdue attempts of these kinds, or due rollouts."""
    overdue = await tx.all(sql.OVERDUE_NAMESPACES, kinds=kinds.names())
    due = await tx.all(sql.DUE_NAMESPACES)
    return sorted({*overdue, *due})
