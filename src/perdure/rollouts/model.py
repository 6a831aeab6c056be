"""State machines of rollouts, attempts and workers, and the rules between them.

Everything here is pure: no I/O, no clock, no randomness. A status without a step in a table stays the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from perdure.kernel.clock import to_micros
from perdure.kernel.errors import NotADatabase
from perdure.kernel.machine import Machine
from perdure.kernel.storage.port import Tx
from perdure.rollouts.records import ATTEMPT_STATUSES, ROLLOUT_STATUSES, WORKER_STATUSES

T = TypeVar("T")

QUEUING: Final = "queuing"
PREPARING: Final = "preparing"
RUNNING: Final = "running"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
REQUEUING: Final = "requeuing"
TIMEOUT: Final = "timeout"
UNRESPONSIVE: Final = "unresponsive"
IDLE: Final = "idle"
BUSY: Final = "busy"
UNKNOWN: Final = "unknown"

QUEUED: Final = frozenset({QUEUING, REQUEUING})
ENDED: Final = frozenset({SUCCEEDED, FAILED, CANCELLED})
LIVE: Final = frozenset({PREPARING, RUNNING})
LAPSED: Final = frozenset({TIMEOUT, UNRESPONSIVE})
REPORTED: Final = frozenset({SUCCEEDED, FAILED})

RELEASED: Final = "released"
"""Reason of an attempt that was released. Such an attempt does not count."""

TASK: Final = "task"
KEPT_TRACE: Final = "kept_trace"
"""Kind of a rollout that holds the spans of a trace without a rollout."""
DEFAULT_QUEUE: Final = "default"


def reported(status: str) -> str:
    """Return the event of the attempt's holder, or an operator, reporting an attempt's status."""
    return "reported " + status


def set_to(status: str) -> str:
    """Return the event of an operator setting a rollout's status."""
    return "set to " + status


ATTEMPT: Final = Machine("attempt", ATTEMPT_STATUSES, start={"claimed": PREPARING}, final=REPORTED)
ATTEMPT.on("span", [PREPARING, UNRESPONSIVE], RUNNING)
ATTEMPT.on("too long", LIVE, TIMEOUT)
ATTEMPT.on("silent", LIVE, UNRESPONSIVE)
for _attempt_status in ATTEMPT_STATUSES:
    ATTEMPT.always(reported(_attempt_status), _attempt_status)

_NOT_CANCELLED = [status for status in ROLLOUT_STATUSES if status != CANCELLED]

ROLLOUT: Final = Machine(
    "rollout", ROLLOUT_STATUSES, start={"enqueued": QUEUING, "started": PREPARING}, final=ENDED
)
ROLLOUT.on("claimed", QUEUED, PREPARING)
ROLLOUT.on("first span", [QUEUING, PREPARING, REQUEUING], RUNNING)
ROLLOUT.on("revived", [QUEUING, PREPARING, REQUEUING, FAILED], RUNNING)
ROLLOUT.on("lapsed, retry", LIVE, REQUEUING)
ROLLOUT.on("lapsed, no retry", LIVE, FAILED)
ROLLOUT.on(reported(PREPARING), _NOT_CANCELLED, PREPARING)
ROLLOUT.on(reported(RUNNING), _NOT_CANCELLED, RUNNING)
ROLLOUT.on(reported(SUCCEEDED), _NOT_CANCELLED, SUCCEEDED)
ROLLOUT.on("reported failure, retry", _NOT_CANCELLED, REQUEUING)
ROLLOUT.on("reported failure, no retry", _NOT_CANCELLED, FAILED)
ROLLOUT.always("attempt started", PREPARING)
for _rollout_status in ROLLOUT_STATUSES:
    ROLLOUT.always(set_to(_rollout_status), _rollout_status)

WORKER: Final = Machine("worker", WORKER_STATUSES, start={"heartbeat": UNKNOWN}, final=())
WORKER.always("registered", IDLE)
WORKER.always("assigned", BUSY)
WORKER.always("found nothing", IDLE)
WORKER.on("attempt reported", WORKER_STATUSES, IDLE)
WORKER.on("attempt lapsed", WORKER_STATUSES, UNKNOWN)
WORKER.always("stopped", UNKNOWN)


class Limits(msgspec.Struct, frozen=True):
    """The part of a rollout's config that the rules read."""

    timeout_seconds: float | None = None
    unresponsive_seconds: float | None = None
    max_attempts: int = 1
    retry_condition: tuple[str, ...] = ()
    free_lapses: int = 0
    """Number of attempts that may become unresponsive without being counted."""
    retry_after: float | None = None
    """If set, a failure of any status is retried after this many seconds, while attempts are left."""


_limits = msgspec.json.Decoder(Limits)


@lru_cache(maxsize=1024)
def decode_limits(config: str) -> Limits:
    """Decode the limits from a stored config.

    Operations need the limits of locked rows. A service that encodes a config calls this too, so that the
    transactions of its rollouts find the result.
    """
    try:
        return _limits.decode(config)
    except msgspec.DecodeError as error:
        raise NotADatabase(f"a stored config is damaged: {error}") from error


def retries(limits: Limits, status: str, tries: int) -> bool:
    """Return whether an attempt that ended with `status` as counted attempt number `tries` is retried."""
    return status in limits.retry_condition and tries < limits.max_attempts


def rollout_event(limits: Limits, status: str, tries: int, *, lapsed: bool) -> str:
    """Return the event of the rollout for a new status of its latest attempt.

    `lapsed` is true if the watchdog set the status. A report has an effect in more statuses than a lapse.
    """
    if status in (PREPARING, RUNNING, SUCCEEDED):
        return reported(status)
    again = "retry" if retries(limits, status, tries) else "no retry"
    return ("lapsed, " if lapsed else "reported failure, ") + again


def span_event(attempt_status: str, rollout_status: str, outcome: str | None) -> str | None:
    """Return the event of the rollout for a span of its latest attempt, given both statuses before the span.

    Only a span that changes the status of its attempt may change the rollout, so that a late span never takes
    a retry out of the queue. A failure is reverted only if silence was its sole reason.
    """
    if attempt_status == PREPARING:
        return "first span"
    if attempt_status == UNRESPONSIVE and (rollout_status != FAILED or outcome == UNRESPONSIVE):
        return "revived"
    return None


def worker_event(attempt_status: str) -> str:
    if attempt_status in LIVE:
        return "assigned"
    return "attempt reported" if attempt_status in REPORTED else "attempt lapsed"


OUTCOMES: Final = {SUCCEEDED: "success", FAILED: "error", CANCELLED: CANCELLED}


def compute_outcome(rollout_status: str, attempt_status: str | None) -> str | None:
    """Return why a rollout ended: the attempt's lapse if that ended it, otherwise the rollout's status."""
    if rollout_status == FAILED and attempt_status in LAPSED:
        return attempt_status
    return OUTCOMES.get(rollout_status)


def compute_deadline(limits: Limits, start_time: int, heartbeat: int | None) -> int | None:
    """Return the first microsecond at which a live attempt is overdue, or None if it has no limit."""
    ends = []
    if limits.timeout_seconds is not None:
        ends.append(start_time + to_micros(limits.timeout_seconds))
    if limits.unresponsive_seconds is not None:
        last_beat = start_time if heartbeat is None else heartbeat
        ends.append(last_beat + to_micros(limits.unresponsive_seconds))
    return min(ends) + 1 if ends else None


def lapse_event(
    limits: Limits, now: int, start_time: int, heartbeat: int | None, *, earliest: bool = False
) -> str | None:
    """Return the event of the limit that a live attempt has passed: "too long" before "silent".

    With `earliest`, the limit that was passed first counts, because a worker that stopped sending heartbeats
    has not continued the run.
    """
    last_beat = start_time if heartbeat is None else heartbeat
    passed = [
        (end, event)
        for event, since, seconds in (
            ("too long", start_time, limits.timeout_seconds),
            ("silent", last_beat, limits.unresponsive_seconds),
        )
        if seconds is not None and now > (end := since + to_micros(seconds))
    ]
    if not passed:
        return None
    _, event = min(passed) if earliest else next(iter(passed))
    return event


class AttemptStart(NamedTuple):
    """An attempt that a claim has started."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    worker_id: str | None
    queue: str
    line: str | None
    parent: str | None


class EndReport:
    """Report of the operation that ends an attempt or a rollout, for the handlers of the kind.

    Each kind derives a class with its own fields.
    """

    __slots__ = ()


class AttemptEnd(NamedTuple):
    """An attempt that a transaction has ended, and its rollout after that: ended, or in its queue again."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    status: str
    reason: str | None
    charged: bool
    worker_id: str | None
    start_time: int
    rollout_status: str
    outcome: str | None
    queue: str
    line: str | None
    parent: str | None
    report: EndReport | None = None


class EndedRollout(NamedTuple):
    """A rollout that a transaction has ended."""

    rollout_id: str
    status: str
    outcome: str | None
    attempts: int
    queue: str
    line: str | None
    parent: str | None
    end_time: int | None
    report: EndReport | None = None


class RolloutEnds(NamedTuple):
    """The attempts and the rollouts of a kind that a transaction has ended."""

    attempts: list[AttemptEnd]
    rollouts: list[EndedRollout]


EndsHandler = Callable[[Tx, RolloutEnds], Awaitable[None]]
Handler = Callable[[Tx, Sequence[T]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listener:
    """Handlers of a domain, called inside the transactions that change rollouts of a kind. Each gets a batch.

    A handler runs in any process that changes a rollout, and may run twice, so it reads only the database.
    It locks only rows that come after attempts in the order of locks.
    """

    on_claimed: Handler[AttemptStart] | None = None
    """Called when claims have started these attempts."""
    on_ends: EndsHandler | None = None
    """Called when attempts are no longer live, for any reason, or rollouts have ended; before `on_ended`.

    If the kind is not `final`, an attempt may become live and end again.
    """
    on_ended: Handler[EndedRollout] | None = None
    """Called when these rollouts have ended."""
    on_stopped: Handler[str] | None = None
    """Called when the executors of these ended rollouts have stopped or were given up."""


@dataclass(frozen=True, slots=True, eq=False)
class RolloutKind(Listener):
    """A kind of rollout, with the handlers of its own domain."""

    name: str
    final: bool = False
    """Whether an end is permanent, and only reports of the holder keep an attempt alive, not spans."""
    unreported: bool = False
    """Whether attempts send no reports. An unresponsive attempt of such a kind has succeeded."""
    counted: bool = False
    """Whether the attempts of a worker are counted: each end is counted, and the worker is busy until it has
    none. Otherwise a worker shows the attempt that it claimed last."""

    def with_listeners(self, *listeners: Listener) -> RolloutKind:
        """Return the kind with these listeners. They are called in order, after the kind's own domain."""
        listening = (self, *listeners)
        return replace(
            self,
            on_claimed=_call_all([listener.on_claimed for listener in listening]),
            on_ends=_call_all([listener.on_ends for listener in listening]),
            on_ended=_call_all([listener.on_ended for listener in listening]),
            on_stopped=_call_all([listener.on_stopped for listener in listening]),
        )

    @property
    def tells_of_ends(self) -> bool:
        """Whether a handler is called when attempts or rollouts end."""
        return self.on_ends is not None or self.on_ended is not None

    @property
    def tells_of_attempts(self) -> bool:
        """Whether a handler was called for a claimed attempt, so that the attempt must not be deleted."""
        return self.on_claimed is not None or self.on_ends is not None


def _call_all(
    handlers: Sequence[Callable[[Tx, T], Awaitable[None]] | None],
) -> Callable[[Tx, T], Awaitable[None]] | None:
    """Return one handler that calls all handlers that exist."""
    present = [handler for handler in handlers if handler is not None]
    if len(present) < 2:
        return next(iter(present), None)

    async def notify(tx: Tx, items: T) -> None:
        for handler in present:
            await handler(tx, items)

    return notify


class Kinds:
    """The kinds that this process has registered. Work of any other kind is refused."""

    def __init__(self, *kinds: RolloutKind) -> None:
        self._kinds: dict[str, RolloutKind] = {kind.name: kind for kind in kinds}

    def register(self, kind: RolloutKind) -> None:
        if kind.name in self._kinds:
            raise AssertionError(f"kind {kind.name} is registered twice")
        self._kinds[kind.name] = kind

    def __getitem__(self, name: str) -> RolloutKind:
        return self._kinds[name]

    def __contains__(self, name: Any) -> bool:
        return name in self._kinds

    def names(self) -> tuple[str, ...]:
        return tuple(self._kinds)
