"""The state machines of rollouts, attempts and workers, and the rules between them.

Everything here is pure: no I/O, no clock, no randomness. A table leaves a status alone where it has no step.
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
"""The reason of an attempt that was given back: it does not count."""

TASK: Final = "task"
KEPT_TRACE: Final = "kept_trace"
"""The kind of a rollout that holds the spans of a trace without a rollout."""
DEFAULT_QUEUE: Final = "default"


def reported(status: str) -> str:
    """The event of an attempt's holder, or an operator, saying what the attempt's status is."""
    return "reported " + status


def set_to(status: str) -> str:
    """The event of an operator setting a rollout's status."""
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
    """How many attempts may fall silent without being counted."""
    retry_after: float | None = None
    """If given, a report of any failure is tried again after so many seconds, while attempts are left."""


_limits = msgspec.json.Decoder(Limits)


@lru_cache(maxsize=1024)
def decode_limits(config: str) -> Limits:
    """The limits in a config's stored text."""
    try:
        return _limits.decode(config)
    except msgspec.DecodeError as error:
        raise NotADatabase(f"a stored config is damaged: {error}") from error


def retries(limits: Limits, status: str, tries: int) -> bool:
    """Whether an attempt that ended like this, after so many that count, is followed by another."""
    return status in limits.retry_condition and tries < limits.max_attempts


def rollout_event(limits: Limits, status: str, tries: int, *, lapsed: bool) -> str:
    """What the latest attempt's new status means for its rollout.

    `lapsed` tells the watchdog's finding from a report: only the report is believed in every status.
    """
    if status in (PREPARING, RUNNING, SUCCEEDED):
        return reported(status)
    again = "retry" if retries(limits, status, tries) else "no retry"
    return ("lapsed, " if lapsed else "reported failure, ") + again


def span_event(attempt_status: str, rollout_status: str, outcome: str | None) -> str | None:
    """What a span of the latest attempt means for the rollout, given both statuses before it.

    Only an attempt that the span itself moves may move the rollout, so that a late span never takes a retry
    out of the queue; a failure is taken back only if silence was its sole reason.
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
    """Why a rollout ended: the attempt's lapse if that ended it, else what its status says."""
    if rollout_status == FAILED and attempt_status in LAPSED:
        return attempt_status
    return OUTCOMES.get(rollout_status)


def compute_deadline(limits: Limits, start_time: int, heartbeat: int | None) -> int | None:
    """The first microsecond at which a live attempt is overdue, or None if it never is."""
    ends = []
    if limits.timeout_seconds is not None:
        ends.append(start_time + to_micros(limits.timeout_seconds))
    if limits.unresponsive_seconds is not None:
        heard = start_time if heartbeat is None else heartbeat
        ends.append(heard + to_micros(limits.unresponsive_seconds))
    return min(ends) + 1 if ends else None


def lapse_event(
    limits: Limits, now: int, start_time: int, heartbeat: int | None, *, earliest: bool = False
) -> str | None:
    """Which limit a live attempt has passed; running too long counts before silence.

    With `earliest`, of two that are passed the one that was passed first counts: whoever fell silent has not
    run on since.
    """
    heard = start_time if heartbeat is None else heartbeat
    passed = [
        (end, event)
        for event, since, seconds in (
            ("too long", start_time, limits.timeout_seconds),
            ("silent", heard, limits.unresponsive_seconds),
        )
        if seconds is not None and now > (end := since + to_micros(seconds))
    ]
    if not passed:
        return None
    _, event = min(passed) if earliest else next(iter(passed))
    return event


class AttemptStart(NamedTuple):
    """An attempt that a claim has begun."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    worker_id: str | None
    queue: str
    line: str | None
    parent: str | None


class AttemptEnd(NamedTuple):
    """An attempt that a transaction has ended, and its rollout after that: ended, or in its queue again.

    `note` is what the operation that ended the rollout has to tell.
    """

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
    note: Any = None


class EndedRollout(NamedTuple):
    """A rollout that a transaction has ended. `note` is what the operation that ended it has to tell."""

    rollout_id: str
    status: str
    outcome: str | None
    attempts: int
    queue: str
    line: str | None
    parent: str | None
    end_time: int | None
    note: Any = None


Handler = Callable[[Tx, Sequence[T]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listener:
    """What a domain does inside the transactions that move rollouts of a kind. Each handler gets a batch.

    A handler runs in whichever process moves a rollout, and may run twice: it reads nothing but the database.
    It locks what comes after attempts in the order of locks.
    """

    on_claimed: Handler[AttemptStart] | None = None
    """Claims have begun these attempts."""
    on_attempt_ended: Handler[AttemptEnd] | None = None
    """These attempts are live no longer, whatever ended them. It comes before `on_ended`.

    Where ends are not final, an attempt may come back to life and end again.
    """
    on_ended: Handler[EndedRollout] | None = None
    """These rollouts have ended."""
    on_stopped: Handler[str] | None = None
    """The executor of these, which had ended before it did, has stopped too, or is given up."""


@dataclass(frozen=True, slots=True, eq=False)
class RolloutKind(Listener):
    """A kind of rollout, with the handlers of its own domain."""

    name: str
    final: bool = False
    """Whether an end is for ever, and only its holder's own words keep an attempt alive: spans do not."""
    unreported: bool = False
    """Whether nobody reports on its attempts, so that one that falls silent has succeeded."""
    counted: bool = False
    """Whether a worker's attempts are counted: it is told of each end, and busy until it has none. Without it
    a worker shows the last that it claimed."""
    new_note: Callable[[], Any] | None = None
    """Makes the note of what ends without one, so that listeners can tell one another what they know."""

    def with_listeners(self, *listeners: Listener) -> RolloutKind:
        """The same kind, which tells these listeners too, in their order and after its own domain."""
        everyone = (self, *listeners)
        return replace(
            self,
            on_claimed=_each([each.on_claimed for each in everyone]),
            on_attempt_ended=_each([each.on_attempt_ended for each in everyone]),
            on_ended=_each([each.on_ended for each in everyone]),
            on_stopped=_each([each.on_stopped for each in everyone]),
        )

    @property
    def tells_of_ends(self) -> bool:
        """Whether somebody is told of attempts or rollouts that end."""
        return self.on_attempt_ended is not None or self.on_ended is not None

    @property
    def tells_of_attempts(self) -> bool:
        """Whether somebody has heard of an attempt that was claimed, so that it cannot just be removed."""
        return self.on_claimed is not None or self.on_attempt_ended is not None


def _each(handlers: Sequence[Handler[T] | None]) -> Handler[T] | None:
    """One handler that calls all that there are."""
    given = [handler for handler in handlers if handler is not None]
    if len(given) < 2:
        return next(iter(given), None)

    async def tell(tx: Tx, items: Sequence[T]) -> None:
        for handler in given:
            await handler(tx, items)

    return tell


class Kinds:
    """The kinds that this process knows. Work of any other kind refuses to start."""

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
