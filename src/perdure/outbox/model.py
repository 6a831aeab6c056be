"""Effects: records, statuses and retry rules. Everything here is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Final, Literal, NamedTuple, Protocol, cast, get_args, runtime_checkable

import msgspec

from perdure.kernel.checks import check_choice
from perdure.kernel.clock import to_micros, to_seconds, to_seconds_or_none
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import MAX_ERROR as MAX_ERROR
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.kernel.errors import error_text as error_text
from perdure.kernel.machine import Machine
from perdure.kernel.record import Record
from perdure.kernel.retry import Backoff
from perdure.outbox.webhooks.urls import check_webhook_url as check_webhook_url
from perdure.outbox.webhooks.urls import mask_target as mask_target

EffectStatus = Literal["pending", "delivered", "dead"]
EFFECT_STATUSES: Final[tuple[EffectStatus, ...]] = get_args(EffectStatus)
PENDING, DELIVERED, DEAD = EFFECT_STATUSES

EffectState = Literal["pending", "processing", "completed", "failed"]
EFFECT_STATES: Final[tuple[EffectState, ...]] = get_args(EffectState)
WAITING, PROCESSING, COMPLETED, FAILED = EFFECT_STATES

MAX_WAIT = 86_400.0
"""Longest wait, in seconds, that a consumer can request."""

EFFECT = (
    Machine("effect", EFFECT_STATUSES, start={"put": PENDING}, final=[DELIVERED])
    # A deliverer that was thought lost may report success: the effect is then delivered, even if it was dead.
    .on("delivered", [PENDING, DEAD], DELIVERED)
    .on("failed", [PENDING], PENDING)
    .on("given_up", [PENDING], DEAD)
    .on("retried", [PENDING, DEAD], PENDING)
)
EFFECT_VIEW = (
    Machine("outbox entry", EFFECT_STATES, start={"put": WAITING}, final=[COMPLETED])
    .on("claimed", [WAITING, FAILED], PROCESSING)
    .on("delivered", [WAITING, PROCESSING, FAILED], COMPLETED)
    .on("failed", [PROCESSING], FAILED)
    .on("lease ended", [PROCESSING], FAILED)
    .on("released", [PROCESSING, FAILED], WAITING)
    .on("released after a failure", [PROCESSING], FAILED)
    .on("retried", [PROCESSING, FAILED], WAITING)
)
"""States of an effect that callers see. They are computed from the row, not stored; see `compute_state`."""


class Undeliverable(PerdureError):
    """The receiver refuses this effect permanently; a retry would not help."""

    code = "undeliverable"
    http_status = 502


class TryLater(PerdureError):
    """The receiver does not accept this effect now: retry after at least `seconds`.

    A try that is not `charged` does not count, because it did not start.
    """

    code = "try_later"
    http_status = 503

    def __init__(self, message: str | None = None, *, seconds: float = 0.0, charged: bool = True) -> None:
        super().__init__(message)
        self.seconds = min(max(0.0, seconds), MAX_WAIT)
        self.charged = charged


class Effect(Record, kw_only=True):
    """An action outside the database that must happen at least once. Its id is the same at every try."""

    id: str
    consumer: str
    subject: str
    """Subject of the effect, such as the id of a run."""
    target: str | None = None
    """Destination, without credentials."""
    status: EffectStatus
    state: EffectState | None = None
    """`processing` while a deliverer holds it; `failed` after a failed try, and when dead."""
    attempts: int
    """Number of started deliveries."""
    created_at: float
    due_at: float | None = None
    """Time of the next try; during a delivery, the end of its lease."""
    delivered_at: float | None = None
    died_at: float | None = None
    last_error: str | None = None
    """The last error."""
    body: str | None = None
    """JSON for the consumer; lists leave it out."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """Number, time and pauses of an effect's tries, all in seconds.

    Pauses double from `first` up to `longest`. The default is about 36 tries in a day. Without `tries` and
    `age` an effect is retried until it is delivered.
    """

    first: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    longest: Annotated[float, msgspec.Meta(gt=0)] = 3600.0
    tries: Annotated[int, msgspec.Meta(ge=1)] | None = 40
    age: Annotated[float, msgspec.Meta(gt=0)] | None = 86_400.0

    def delay(self, effect_id: str, tries: int) -> float:
        """Return the pause after this number of tries, with up to 25% deterministic jitter per effect."""
        chance = int.from_bytes(sha256(f"{effect_id}/{tries}".encode()).digest()[:4], "big") / 2**32
        return Backoff(self.first, self.longest, jitter=(0.75, 1.25), chance=lambda: chance).delay(tries)


ENDLESS = Retries(longest=300.0, tries=None, age=None)
"""Retried until it is delivered, about every 5 minutes."""


class DeliveryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Delivery of the effects of one consumer. All processes of a database must use the same policy."""

    retries: Retries = Retries()
    concurrency: Annotated[int, msgspec.Meta(ge=1)] = 32
    """Maximum number of concurrent calls of the consumer."""
    deadline: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """Maximum seconds of one call."""
    batch: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    """Maximum number of effects in one call of a batch consumer."""
    gather: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0
    """Seconds that new effects may gather before they are claimed together."""
    keep: bool = True
    """True if a delivered effect stays in lists for a while; otherwise it is deleted at once."""


class Consumer(Protocol):
    """Delivers the effects with its name.

    It raises `Undeliverable` for a permanent refusal. After `TryLater`, any other exception, or a crash, the
    effect is delivered again with the same id. Without a `policy` that of its `Deliveries` applies.
    """

    @property
    def name(self) -> str: ...

    @property
    def policy(self) -> DeliveryPolicy | None: ...

    async def deliver(self, effect: Effect) -> None: ...


@runtime_checkable
class BatchConsumer(Protocol):
    """Delivers the effects with its name in batches of one namespace, in the order of their ids.

    It returns the errors of failed effects by id; all others are delivered. If it raises, all have failed. A
    failed effect is delivered again by itself, so that it delays no others. An effect that the consumer
    deletes with `operations.remove`, in the transaction of its own work, happens exactly once.
    """

    @property
    def name(self) -> str: ...

    @property
    def policy(self) -> DeliveryPolicy | None: ...

    async def deliver_batch(self, ns: int, effects: Sequence[Effect]) -> Mapping[str, Exception]: ...


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """Result of one try. It must not overrule a later `attempt`."""

    id: str
    attempt: int
    event: Literal["delivered", "failed", "refused", "released"]
    error: str | None = None
    wait: float = 0.0
    """Minimum wait before the next try."""


class EffectRow(NamedTuple):
    """An effect as stored. Times are microseconds."""

    ns: int
    id: str
    consumer: str
    subject: str
    target: str | None
    status: str
    attempts: int
    answered: int
    """Last attempt with a recorded outcome, or one that no longer matters."""
    forgiven: int
    """Number of attempts that do not count: released ones, and those before a retry by hand."""
    created_at: int
    since: int
    """Start of its retry period: its creation, or the last retry by hand."""
    due_at: int | None
    ended_at: int | None
    last_error: str | None

    @property
    def tries(self) -> int:
        return self.attempts - self.forgiven


class EffectKey(NamedTuple):
    """Key of an effect in any namespace."""

    ns: int
    id: str


class EffectBodyRow(NamedTuple):
    """Body of an effect."""

    id: str
    body: str


def settled(row: EffectRow, outcome: DeliveryOutcome, retries: Retries, now: int) -> EffectRow:
    """Apply the outcome of a try to an effect, unless a later try or another deliverer decided before."""
    if outcome.event == "delivered":
        return _end(row, "delivered", now, row.last_error)
    if row.status != PENDING or outcome.attempt != row.attempts or outcome.attempt == row.answered:
        return row
    row = row._replace(answered=outcome.attempt)
    if outcome.event == "released":
        return row._replace(forgiven=row.forgiven + 1, due_at=now + to_micros(outcome.wait))
    if outcome.event == "refused" or _is_exhausted(row, retries, now):
        return _end(row, "given_up", now, outcome.error)
    wait = max(retries.delay(outcome.id, row.tries), outcome.wait)
    status = EFFECT.step(row.status, "failed")
    return row._replace(status=status, due_at=now + to_micros(wait), last_error=outcome.error)


def unanswered(row: EffectRow, retries: Retries, now: int) -> EffectRow | None:
    """End an effect whose last try never reported an outcome; None if it has tries left."""
    if retries.tries is None or row.tries <= retries.tries:
        return None
    error = f"started {row.tries - 1} times; the last try never reported an outcome"
    return _end(row, "given_up", now, error)


def retried(row: EffectRow, now: int) -> EffectRow:
    """Reset an effect for a retry by hand: due at once, with all tries and the full period."""
    return row._replace(
        status=EFFECT.step(row.status, "retried"),
        answered=row.attempts,
        forgiven=row.attempts,
        since=now,
        due_at=now,
        ended_at=None,
    )


def _is_exhausted(row: EffectRow, retries: Retries, now: int) -> bool:
    if retries.tries is not None and row.tries >= retries.tries:
        return True
    return retries.age is not None and now - row.since >= to_micros(retries.age)


def _end(row: EffectRow, event: str, now: int, error: str | None) -> EffectRow:
    if not EFFECT.moves(row.status, event):
        return row
    return row._replace(status=EFFECT.step(row.status, event), due_at=None, ended_at=now, last_error=error)


def compute_state(row: EffectRow, now: int) -> EffectState:
    """Compute the state of an effect."""
    if row.status == DELIVERED:
        return COMPLETED
    if row.status == DEAD:
        return FAILED
    if row.attempts > row.answered:
        # A deliverer that is silent until its lease ends counts as lost.
        return PROCESSING if row.due_at is not None and row.due_at > now else FAILED
    return FAILED if row.tries else WAITING


# --- rows -------------------------------------------------------------------------------------------------


def row_to_effect(row: EffectRow, now: int, body: str | None = None) -> Effect:
    """Convert a row to the effect that callers see at a time."""
    ended = to_seconds_or_none(row.ended_at)
    return Effect(
        id=row.id,
        consumer=row.consumer,
        subject=row.subject,
        target=row.target,
        status=cast(EffectStatus, row.status),
        state=compute_state(row, now),
        attempts=row.attempts,
        created_at=to_seconds(row.created_at),
        due_at=to_seconds_or_none(row.due_at),
        delivered_at=ended if row.status == DELIVERED else None,
        died_at=ended if row.status == DEAD else None,
        last_error=row.last_error,
        body=body,
    )


def shown_body(body: str | None) -> str | None:
    """Mask the credentials of the URL in a body."""
    if body is None:
        return None
    try:
        content = decode_json(body)
    except InvalidInput:
        return body
    if not isinstance(content, dict) or not isinstance(content.get("url"), str):
        return body
    return encode_json({**content, "url": mask_target(content["url"])})


def statuses_from(statuses: str | Sequence[str] | None) -> list[str] | None:
    """Check the statuses to filter by; None means all, InvalidInput for an unknown one."""
    if statuses is None:
        return None
    wanted = [statuses] if isinstance(statuses, str) else list(statuses)
    return [check_choice(status, EFFECT_STATUSES, "status") for status in wanted]
