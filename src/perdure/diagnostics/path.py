"""The path of statuses of a rollout, derived from its row, its attempts and the audit.

Statuses are not stored one by one. An attempt has the times of its claim and its end, the rollout its current
status, and the audit the caller. A status that follows from none of these is left out or marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from perdure.diagnostics.model import AuditMatch, DiagnosedAttemptRow, DiagnosedRolloutRow
from perdure.kernel.clock import to_seconds, to_seconds_or_none
from perdure.kernel.record import Record
from perdure.rollouts.model import (
    CANCELLED,
    ENDED,
    FAILED,
    LAPSED,
    PREPARING,
    QUEUED,
    QUEUING,
    RELEASED,
    REPORTED,
    REQUEUING,
    RUNNING,
    SUCCEEDED,
    TASK,
    TIMEOUT,
    Limits,
    compute_deadline,
    decode_limits,
    reported,
    retries,
    rollout_event,
    set_to,
)
from perdure.rollouts.records import RolloutStatus
from perdure.threads.model import RETRIABLE, RUN_KINDS, STOPPED, run_status
from perdure.threads.records import RunStatus
from perdure.threads.rows import decode_failure

MOST_ATTEMPTS = 100
"""Limit of attempts in a path; the latest ones are shown."""
MAX_CAUSE = 300


class PathState(Record, kw_only=True):
    """A status of a rollout."""

    status: RolloutStatus
    run_status: RunStatus | None = None
    """The same status as a status of runs, for runs and phases."""
    since: float | None = None
    """Start of the status; null if unknown."""
    exact: bool = True
    """True if `since` is stored; otherwise it is the nearest known time."""
    until: float | None = None
    """Start of the next status; null for the last one."""
    event: str
    """The event before the status, as the chart of the state machine names it."""
    cause: str
    """The event in words."""
    attempt: int | None = None
    """The number of the attempt of the event."""
    attempt_id: str | None = None
    worker_id: str | None = None
    actor: str | None = None
    """The caller, if the audit has an entry."""


class RolloutPath(Record, kw_only=True):
    """The statuses of a rollout, earliest first."""

    rollout_id: str
    kind: str
    status: RolloutStatus
    items: list[PathState]
    unknown: list[str]
    """Facts that are not stored, in sentences."""
    left_out: int
    """Number of earliest attempts that are not shown."""


class Requeue(NamedTuple):
    """An audit entry of a requeue, or of a new attempt of an ended rollout."""

    time: int
    actor: str
    started: bool
    """True if the attempt was started without the queue."""


class PathRows(NamedTuple):
    """The rows of a rollout's path. `spans` has the start of the first span of each attempt."""

    row: DiagnosedRolloutRow
    attempts: Sequence[DiagnosedAttemptRow]
    """The latest attempts, in order."""
    uncharged: int
    """Number of attempts that do not count, of all attempts."""
    spans: Mapping[str, int]
    created: AuditMatch
    ended: AuditMatch
    requeued: Mapping[int, Requeue]
    """By the number of the attempt before it."""


def goes_again(limits: Limits, attempt: DiagnosedAttemptRow, tries: int) -> bool:
    """Return whether the rules queue a rollout again after this attempt."""
    if attempt.reason == RELEASED or retries(limits, attempt.status, tries):
        return True
    by_worker = attempt.reason == RETRIABLE or (attempt.status == TIMEOUT and limits.retry_after is not None)
    return by_worker and tries < limits.max_attempts


def count_tries(attempts: Sequence[DiagnosedAttemptRow], uncharged: int) -> dict[int, int]:
    """Return the number of counted attempts after each attempt."""
    before = uncharged - sum(1 for attempt in attempts if not attempt.charged)
    tries: dict[int, int] = {}
    for attempt in attempts:
        before += 0 if attempt.charged else 1
        tries[attempt.sequence_id] = attempt.sequence_id - before
    return tries


def build_rollout_path(rows: PathRows, *, final: bool) -> RolloutPath:
    """Build the path. `final` is true if the end of this kind of rollout is final."""
    return _Path(rows, final).shown()


class _Path:
    def __init__(self, rows: PathRows, final: bool) -> None:
        self._rows = rows
        self._final = final
        self._limits = decode_limits(rows.row.config)
        self._tries = count_tries(rows.attempts, rows.uncharged)
        self._states: list[PathState] = []
        self._unknown: list[str] = []

    def shown(self) -> RolloutPath:
        row, attempts = self._rows.row, self._rows.attempts
        left_out = attempts[0].sequence_id - 1 if attempts else 0
        self._add_start()
        if left_out:
            self._unknown.append(f"The first {left_out} attempts are not shown.")
        for attempt in attempts:
            self._add_claim(attempt, again=attempt.sequence_id > left_out + 1)
            self._add_run(attempt)
            self._add_attempt_end(attempt, last=attempt is attempts[-1])
        self._add_current()
        for state, following in pairwise(self._states):
            state.until = following.since
        return RolloutPath(
            rollout_id=row.id,
            kind=row.kind,
            status=self._states[-1].status,
            items=self._states,
            unknown=list(dict.fromkeys(self._unknown)),
            left_out=left_out,
        )

    def _add(
        self,
        status: str,
        event: str,
        cause: str,
        since: int | None,
        attempt: DiagnosedAttemptRow | None = None,
        *,
        exact: bool = True,
        actor: str | None = None,
    ) -> None:
        row = self._rows.row
        outcome = row.outcome if status in ENDED and status == row.status else None
        self._states.append(
            PathState.model_validate(
                {
                    "status": status,
                    "run_status": run_status(status, outcome) if row.kind in RUN_KINDS else None,
                    "since": to_seconds_or_none(since),
                    "exact": exact and since is not None,
                    "event": event,
                    "cause": cause[:MAX_CAUSE],
                    "attempt": None if attempt is None else attempt.sequence_id,
                    "attempt_id": None if attempt is None else attempt.id,
                    "worker_id": None if attempt is None else attempt.worker_id,
                    "actor": actor,
                }
            )
        )

    def _add_start(self) -> None:
        """Add the first status: an attempt that was started at once, without the queue, was never queued.

        Only tasks are started like this. A run claimed in the transaction that creates it was queued.
        """
        row, actor = self._rows.row, self._rows.created.actor
        first = next(iter(self._rows.attempts), None)
        at_once = first is not None and first.sequence_id == 1 and first.start_time == row.start_time
        if row.kind != TASK or not at_once:
            who = "" if actor is None else f" by {actor}"
            self._add(QUEUING, "enqueued", f"queued in {row.queue!r}{who}", row.start_time, actor=actor)

    def _add_claim(self, attempt: DiagnosedAttemptRow, *, again: bool) -> None:
        worker = f"worker {attempt.worker_id}" if attempt.worker_id else "a worker without a name"
        if not self._states:
            actor = self._rows.created.actor
            cause = f"started at once, past the queue, on {worker}"
            self._add(PREPARING, "started", cause, attempt.start_time, attempt, actor=actor)
            return
        actor = None
        if self._states[-1].status in ENDED and again:
            actor = self._add_requeue(attempt)
        event = "claimed" if self._states[-1].status in QUEUED else "attempt started"
        cause = f"claimed by {worker} as attempt {attempt.sequence_id}"
        if event != "claimed":
            cause = f"attempt {attempt.sequence_id} was started on {worker}, past the queue"
        self._add(PREPARING, event, cause, attempt.start_time, attempt, actor=actor)

    def _add_requeue(self, attempt: DiagnosedAttemptRow) -> str | None:
        """Add the requeue of an ended rollout, or the start of another attempt; return the caller."""
        entry = self._rows.requeued.get(attempt.sequence_id - 1)
        if entry is None:
            self._unknown.append(
                f"Who wanted attempt {attempt.sequence_id} after the end, and when, is not in the audit."
            )
            self._add(REQUEUING, set_to(REQUEUING), "queued again by hand", None)
        elif entry.started:
            return entry.actor
        else:
            cause = f"queued again by {entry.actor}"
            self._add(REQUEUING, set_to(REQUEUING), cause, entry.time, actor=entry.actor)
        return None

    def _add_run(self, attempt: DiagnosedAttemptRow) -> None:
        first = self._rows.spans.get(attempt.id)
        if self._final or (first is None and attempt.status != RUNNING):
            return
        if first is None:
            self._unknown.append(f"When attempt {attempt.sequence_id} was reported as running is not stored.")
            cause = f"attempt {attempt.sequence_id} was reported as running"
            self._add(RUNNING, reported(RUNNING), cause, None, attempt)
            return
        self._unknown.append("When a first span arrived is not stored; shown is when it began.")
        cause = f"attempt {attempt.sequence_id} sent its first span"
        since = max(first, attempt.start_time)
        self._add(RUNNING, "first span", cause, since, attempt, exact=False)

    def _add_attempt_end(self, attempt: DiagnosedAttemptRow, *, last: bool) -> None:
        """Add the status after an attempt. After the last attempt, check the status against the rollout."""
        row, number = self._rows.row, attempt.sequence_id
        if attempt.reason == STOPPED or attempt.status not in (REPORTED | LAPSED):
            return
        if last and row.status == CANCELLED and (attempt.end_time or row.start_time) >= (row.end_time or 0):
            return
        lapsed = attempt.status in LAPSED
        if attempt.status == SUCCEEDED:
            cause = f"attempt {number} succeeded"
            self._add(SUCCEEDED, reported(SUCCEEDED), cause, attempt.end_time, attempt)
            return
        again = goes_again(self._limits, attempt, self._tries[number])
        again = again and not (last and row.status == FAILED)
        by_watchdog = lapsed and attempt.end_time is None
        event = rollout_event(self._limits, attempt.status, self._tries[number], lapsed=by_watchdog)
        if again:
            event = ("lapsed" if by_watchdog else "reported failure") + ", retry"
        since = attempt.end_time
        exact = since is not None
        if since is None:
            since = compute_deadline(self._limits, attempt.start_time, attempt.last_heartbeat_time)
            self._unknown.append(
                "When the watchdog found that a lease had ended is not stored; shown is its deadline."
            )
        self._add(
            REQUEUING if again else FAILED, event, self._describe_end(attempt), since, attempt, exact=exact
        )

    def _describe_end(self, attempt: DiagnosedAttemptRow) -> str:
        number = f"attempt {attempt.sequence_id}"
        worker = f"worker {attempt.worker_id}" if attempt.worker_id else "its worker"
        uncounted = "" if attempt.charged else "; it does not count"
        if attempt.reason == RELEASED:
            return f"{worker} gave {number} back{uncounted}"
        if attempt.status == TIMEOUT:
            return f"{number} took longer than its timeout{uncounted}"
        if attempt.status in LAPSED:
            return f"{worker} was silent and lost its lease on {number}{uncounted}"
        failure = decode_failure(attempt.metadata) if self._rows.row.kind in RUN_KINDS else None
        message = "" if failure is None else f": {failure.error}: {failure.message}"
        return f"{number} failed{message}{uncounted}"

    def _add_current(self) -> None:
        """End the path with the rollout's current status, whatever the attempts are."""
        row, last = self._rows.row, self._states[-1]
        if last.status == row.status:
            if row.end_time is not None:
                last.since, last.exact = to_seconds(row.end_time), True
            return
        actor = self._rows.ended.actor
        who = "by hand" if actor is None else f"by {actor}"
        if row.status == CANCELLED:
            instead = self._rows.ended.instead
            way = "" if instead is None else f", to make way for run {instead}"
            who = "" if actor is None else f" {who}"
            self._add(CANCELLED, set_to(CANCELLED), f"cancelled{who}{way}", row.end_time, actor=actor)
        elif row.status in ENDED:
            self._add(row.status, set_to(row.status), f"set to {row.status} {who}", row.end_time, actor=actor)
        elif row.status == REQUEUING:
            queued = row.position if row.line is None else None
            self._add(REQUEUING, set_to(REQUEUING), f"queued again {who}", queued, actor=actor)
        else:
            self._unknown.append(f"When and by whom it was set to {row.status} is not known.")
            self._add(row.status, set_to(row.status), f"set to {row.status}", None)
