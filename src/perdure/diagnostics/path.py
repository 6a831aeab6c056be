"""The path of statuses that a rollout took, derived from what is stored of it, its attempts and the audit.

Statuses are not stored one by one: an attempt tells when it was claimed and how it ended, the rollout tells
where it stands, and the audit who asked for it. What follows from none of these is left out or marked.
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
"""How many attempts of a rollout its path has, the latest ones."""
MAX_CAUSE = 300


class PathState(Record, kw_only=True):
    """A status that a rollout was in."""

    status: RolloutStatus
    run_status: RunStatus | None = None
    """The same as a status of runs, for runs and phases."""
    since: float | None = None
    """When it began; null where that is not known."""
    exact: bool = True
    """Whether `since` is stored; else it is the nearest time that is known."""
    until: float | None = None
    """When the next status began; null for the last one."""
    event: str
    """What led to it, as the chart of the machine calls it."""
    cause: str
    """The same in words."""
    attempt: int | None = None
    """The number of the attempt that led to it."""
    attempt_id: str | None = None
    worker_id: str | None = None
    actor: str | None = None
    """Who asked for it, if the audit knows."""


class RolloutPath(Record, kw_only=True):
    """The statuses that a rollout was in, the earliest first."""

    rollout_id: str
    kind: str
    status: RolloutStatus
    items: list[PathState]
    unknown: list[str]
    """What is not stored and so cannot be told, in sentences."""
    left_out: int
    """How many of the earliest attempts are not shown."""


class Requeue(NamedTuple):
    """An entry of the audit by which a rollout that had ended was queued again, or got another attempt."""

    time: int
    actor: str
    started: bool
    """Whether the attempt was started past the queue."""


class PathRows(NamedTuple):
    """The rows about the path of a rollout. `spans` has when the first span of an attempt began."""

    row: DiagnosedRolloutRow
    attempts: Sequence[DiagnosedAttemptRow]
    """The latest ones, in their order."""
    uncharged: int
    """How many of all attempts do not count."""
    spans: Mapping[str, int]
    created: AuditMatch
    ended: AuditMatch
    requeued: Mapping[int, Requeue]
    """By the number of the attempt before it."""


def goes_again(limits: Limits, attempt: DiagnosedAttemptRow, tries: int) -> bool:
    """Whether the rules queue a rollout again after an attempt that ended like this."""
    if attempt.reason == RELEASED or retries(limits, attempt.status, tries):
        return True
    by_worker = attempt.reason == RETRIABLE or (attempt.status == TIMEOUT and limits.retry_after is not None)
    return by_worker and tries < limits.max_attempts


def count_tries(found: Sequence[DiagnosedAttemptRow], uncharged: int) -> dict[int, int]:
    """How many attempts had counted after each of these."""
    before = uncharged - sum(1 for each in found if not each.charged)
    tries: dict[int, int] = {}
    for attempt in found:
        before += 0 if attempt.charged else 1
        tries[attempt.sequence_id] = attempt.sequence_id - before
    return tries


def build_rollout_path(found: PathRows, *, final: bool) -> RolloutPath:
    """The path in rows. `final` is whether ends of this kind of rollout are for ever."""
    return _Path(found, final).shown()


class _Path:
    def __init__(self, found: PathRows, final: bool) -> None:
        self._found = found
        self._final = final
        self._limits = decode_limits(found.row.config)
        self._tries = count_tries(found.attempts, found.uncharged)
        self._states: list[PathState] = []
        self._unknown: list[str] = []

    def shown(self) -> RolloutPath:
        row, attempts = self._found.row, self._found.attempts
        left_out = attempts[0].sequence_id - 1 if attempts else 0
        self._begin()
        if left_out:
            self._unknown.append(f"The first {left_out} attempts are not shown.")
        for attempt in attempts:
            self._claimed(attempt, again=attempt.sequence_id > left_out + 1)
            self._run(attempt)
            self._attempt_ended(attempt, last=attempt is attempts[-1])
        self._settle()
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
        row = self._found.row
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

    def _begin(self) -> None:
        """What was started at once, past the queue, was never queued; only tasks are started so.

        A run may be claimed in the transaction that creates it, and was in the queue nevertheless.
        """
        row, actor = self._found.row, self._found.created.actor
        first = next(iter(self._found.attempts), None)
        at_once = first is not None and first.sequence_id == 1 and first.start_time == row.start_time
        if row.kind != TASK or not at_once:
            who = "" if actor is None else f" by {actor}"
            self._add(QUEUING, "enqueued", f"queued in {row.queue!r}{who}", row.start_time, actor=actor)

    def _claimed(self, attempt: DiagnosedAttemptRow, *, again: bool) -> None:
        worker = f"worker {attempt.worker_id}" if attempt.worker_id else "a worker without a name"
        if not self._states:
            actor = self._found.created.actor
            cause = f"started at once, past the queue, on {worker}"
            self._add(PREPARING, "started", cause, attempt.start_time, attempt, actor=actor)
            return
        actor = None
        if self._states[-1].status in ENDED and again:
            actor = self._requeued(attempt)
        event = "claimed" if self._states[-1].status in QUEUED else "attempt started"
        cause = f"claimed by {worker} as attempt {attempt.sequence_id}"
        if event != "claimed":
            cause = f"attempt {attempt.sequence_id} was started on {worker}, past the queue"
        self._add(PREPARING, event, cause, attempt.start_time, attempt, actor=actor)

    def _requeued(self, attempt: DiagnosedAttemptRow) -> str | None:
        """Somebody queued again what had ended, or started another attempt of it: then gives who."""
        entry = self._found.requeued.get(attempt.sequence_id - 1)
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

    def _run(self, attempt: DiagnosedAttemptRow) -> None:
        first = self._found.spans.get(attempt.id)
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

    def _attempt_ended(self, attempt: DiagnosedAttemptRow, *, last: bool) -> None:
        """What the end of an attempt meant for its rollout. The last one's is checked against the rollout."""
        row, number = self._found.row, attempt.sequence_id
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
        self._add(REQUEUING if again else FAILED, event, self._how(attempt), since, attempt, exact=exact)

    def _how(self, attempt: DiagnosedAttemptRow) -> str:
        number = f"attempt {attempt.sequence_id}"
        worker = f"worker {attempt.worker_id}" if attempt.worker_id else "its worker"
        uncounted = "" if attempt.charged else "; it does not count"
        if attempt.reason == RELEASED:
            return f"{worker} gave {number} back{uncounted}"
        if attempt.status == TIMEOUT:
            return f"{number} took longer than its timeout{uncounted}"
        if attempt.status in LAPSED:
            return f"{worker} was silent and lost its lease on {number}{uncounted}"
        failure = decode_failure(attempt.metadata) if self._found.row.kind in RUN_KINDS else None
        said = "" if failure is None else f": {failure.error}: {failure.message}"
        return f"{number} failed{said}{uncounted}"

    def _settle(self) -> None:
        """Let the path end where the rollout stands, whatever the attempts say."""
        row, last = self._found.row, self._states[-1]
        if last.status == row.status:
            if row.end_time is not None:
                last.since, last.exact = to_seconds(row.end_time), True
            return
        actor = self._found.ended.actor
        who = "by hand" if actor is None else f"by {actor}"
        if row.status == CANCELLED:
            instead = self._found.ended.instead
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
