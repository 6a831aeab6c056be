"""Effects: what they are, how they move, and when they are tried again. Everything here is pure."""

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
"""The longest wait, in seconds, that a consumer can ask for."""

EFFECT = (
    Machine("effect", EFFECT_STATUSES, start={"put": PENDING}, final=[DELIVERED])
    # A deliverer that was thought lost may say that it is done: then it is, even if others gave up.
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
"""What callers see of an effect. It is computed from the row, and stored nowhere: see `state_of`."""


class Undeliverable(PerdureError):
    """The other side refuses this for good: trying again would not help."""

    code = "undeliverable"
    http_status = 502


class TryLater(PerdureError):
    """The other side does not take this now: try again, not before `seconds` have passed.

    A try that is not `charged` counts for nothing: it was never begun.
    """

    code = "try_later"
    http_status = 503

    def __init__(self, message: str | None = None, *, seconds: float = 0.0, charged: bool = True) -> None:
        super().__init__(message)
        self.seconds = min(max(0.0, seconds), MAX_WAIT)
        self.charged = charged


class Effect(Record, kw_only=True):
    """Something that must happen outside, at least once. Its id is the same at every try."""

    id: str
    consumer: str
    subject: str
    """What it is about, such as the id of a run."""
    target: str | None = None
    """Where it goes, without credentials."""
    status: EffectStatus
    state: EffectState | None = None
    """What is going on: `processing` while a deliverer has it; `failed` after a failed try, and when dead."""
    attempts: int
    """How often a delivery has begun."""
    created_at: float
    due_at: float | None = None
    """When it is tried next; while it is being delivered, when its deliverer counts as lost."""
    delivered_at: float | None = None
    died_at: float | None = None
    last_error: str | None = None
    """What went wrong the last time that something did."""
    body: str | None = None
    """JSON for the consumer; a list leaves it out."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often, how long and with what waits an effect is tried, all in seconds.

    Waits double from `first` up to `longest`. By default that is some 36 tries in a day. Without `tries` and
    `age` an effect is tried until it is delivered.
    """

    first: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    longest: Annotated[float, msgspec.Meta(gt=0)] = 3600.0
    tries: Annotated[int, msgspec.Meta(ge=1)] | None = 40
    age: Annotated[float, msgspec.Meta(gt=0)] | None = 86_400.0

    def delay(self, effect_id: str, tries: int) -> float:
        """The wait after so many tries: up to a quarter less or more, the same for the same effect."""
        chance = int.from_bytes(sha256(f"{effect_id}/{tries}".encode()).digest()[:4], "big") / 2**32
        return Backoff(self.first, self.longest, jitter=(0.75, 1.25), chance=lambda: chance).delay(tries)


ENDLESS = Retries(longest=300.0, tries=None, age=None)
"""Tried until it is delivered, at least every five minutes or so."""


class DeliveryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How the effects of one consumer are delivered. It is the same in all processes of a database."""

    retries: Retries = Retries()
    concurrency: Annotated[int, msgspec.Meta(ge=1)] = 32
    """How many calls of the consumer run at once."""
    deadline: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """The seconds that one call may take."""
    batch: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    """How many effects a consumer of batches gets in one call."""
    gather: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0
    """For how many seconds new effects may gather before they are claimed together."""
    keep: bool = True
    """Whether a delivered effect stays in lists for a while; else it is deleted at once."""


class Consumer(Protocol):
    """Delivers the effects that bear its name.

    It raises `Undeliverable` for what is refused for good. After `TryLater`, any other exception, or the
    death of its process, the same effect comes again, with the same id. Without a `policy` it has that of
    its `Deliveries`.
    """

    @property
    def name(self) -> str: ...

    @property
    def policy(self) -> DeliveryPolicy | None: ...

    async def deliver(self, effect: Effect) -> None: ...


@runtime_checkable
class BatchConsumer(Protocol):
    """Delivers the effects that bear its name in batches, each of one namespace and in the order of ids.

    It returns the errors of those that failed, by their ids; all others are delivered. If it raises, all
    have failed. An effect that has failed comes again alone, so that it holds up no other. What it deletes
    with `operations.remove`, in the transaction of its own work, happens exactly once.
    """

    @property
    def name(self) -> str: ...

    @property
    def policy(self) -> DeliveryPolicy | None: ...

    async def deliver_batch(self, ns: int, effects: Sequence[Effect]) -> Mapping[str, Exception]: ...


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """What became of one try. `attempt` tells it from later ones, which it must not overrule."""

    id: str
    attempt: int
    event: Literal["delivered", "failed", "refused", "released"]
    error: str | None = None
    wait: float = 0.0
    """How long to wait at least."""


class EffectRow(NamedTuple):
    """An effect as it is stored. Times are microseconds."""

    ns: int
    id: str
    consumer: str
    subject: str
    target: str | None
    status: str
    attempts: int
    answered: int
    """The last attempt whose outcome is known, or no longer matters."""
    forgiven: int
    """How many of the attempts do not count: released ones, and those before a retry by hand."""
    created_at: int
    since: int
    """When its time to be delivered began: when it was made, or last retried by hand."""
    due_at: int | None
    ended_at: int | None
    last_error: str | None

    @property
    def tries(self) -> int:
        return self.attempts - self.forgiven


class EffectKey(NamedTuple):
    """Which effect, in any namespace."""

    ns: int
    id: str


class EffectBodyRow(NamedTuple):
    """The body of an effect."""

    id: str
    body: str


def settled(row: EffectRow, outcome: DeliveryOutcome, retries: Retries, now: int) -> EffectRow:
    """The effect after a try. What a later try or another deliverer has decided stays as it is."""
    if outcome.event == "delivered":
        return _ended(row, "delivered", now, row.last_error)
    if row.status != PENDING or outcome.attempt != row.attempts or outcome.attempt == row.answered:
        return row
    row = row._replace(answered=outcome.attempt)
    if outcome.event == "released":
        return row._replace(forgiven=row.forgiven + 1, due_at=now + to_micros(outcome.wait))
    if outcome.event == "refused" or _exhausted(row, retries, now):
        return _ended(row, "given_up", now, outcome.error)
    wait = max(retries.delay(outcome.id, row.tries), outcome.wait)
    status = EFFECT.step(row.status, "failed")
    return row._replace(status=status, due_at=now + to_micros(wait), last_error=outcome.error)


def unanswered(row: EffectRow, retries: Retries, now: int) -> EffectRow | None:
    """The end of an effect whose deliverers were all lost, the last of them on its last try; else None."""
    if retries.tries is None or row.tries <= retries.tries:
        return None
    error = f"begun {row.tries - 1} times, and the last deliverer never reported an outcome"
    return _ended(row, "given_up", now, error)


def retried(row: EffectRow, now: int) -> EffectRow:
    """The effect after a retry by hand: due at once, with all its tries and its time again."""
    return row._replace(
        status=EFFECT.step(row.status, "retried"),
        answered=row.attempts,
        forgiven=row.attempts,
        since=now,
        due_at=now,
        ended_at=None,
    )


def _exhausted(row: EffectRow, retries: Retries, now: int) -> bool:
    if retries.tries is not None and row.tries >= retries.tries:
        return True
    return retries.age is not None and now - row.since >= to_micros(retries.age)


def _ended(row: EffectRow, event: str, now: int, error: str | None) -> EffectRow:
    if not EFFECT.moves(row.status, event):
        return row
    return row._replace(status=EFFECT.step(row.status, event), due_at=None, ended_at=now, last_error=error)


def compute_state(row: EffectRow, now: int) -> EffectState:
    """What is going on with an effect."""
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
    """An effect as callers see it at a time."""
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
    """A body as it may be shown: a URL in it loses its credentials."""
    if body is None:
        return None
    try:
        content = decode_json(body)
    except InvalidInput:
        return body
    if not isinstance(content, dict) or not isinstance(content.get("url"), str):
        return body
    return encode_json({**content, "url": mask_target(content["url"])})


def statuses_from(given: str | Sequence[str] | None) -> list[str] | None:
    """The statuses to filter by, or None for all; InvalidInput for one that does not exist."""
    if given is None:
        return None
    wanted = [given] if isinstance(given, str) else list(given)
    return [check_choice(status, EFFECT_STATUSES, "status") for status in wanted]
