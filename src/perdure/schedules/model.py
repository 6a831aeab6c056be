"""The rules of schedules, and the port to what they start. Everything here is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from perdure.kernel.clock import to_micros, to_seconds, to_seconds_or_none
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.kernel.storage.labels import encode_metadata
from perdure.kernel.storage.port import Tx
from perdure.outbox.webhooks.urls import mask_target
from perdure.schedules.records import Firing, Schedule
from perdure.schedules.times import next_time

LATE: Final = to_micros(60.0)
"""How long after its end a schedule still fires for a time before it."""
KEPT_FIRINGS = 100
"""How many firings of a schedule are kept."""
LATEST: Final = to_micros(250_000_000_000.0)
"""The latest time that is accepted, in the year 9892."""


# --- what schedules start ---------------------------------------------------------------------------------


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a target starts for a schedule. `due_at` is the time that has come, in microseconds."""

    schedule_id: str
    due_at: int
    assistant_id: str | None
    thread_id: str | None
    metadata: Mapping[str, Any]
    payload: Mapping[str, Any]


class Target(Protocol):
    """What schedules of one kind start."""

    @property
    def name(self) -> str: ...

    def prepare(self, order: Order) -> Any:
        """Check an order and encode what `start` needs; raises what is wrong with it."""
        ...

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        """Why no schedule can be created for this thread, or None."""
        ...

    async def start(self, tx: Tx, prepared: Sequence[Any]) -> Sequence[str | PerdureError]:
        """Start what was prepared; answers each with the id of what was started, or with an error."""
        ...


class Targets:
    """The targets that this process knows. Schedules of any other are left to other processes."""

    def __init__(self, *targets: Target) -> None:
        self._targets = {target.name: target for target in targets}

    def __getitem__(self, name: str) -> Target:
        if name not in self._targets:
            raise InvalidInput(f"there is no target {name!r} for a schedule")
        return self._targets[name]

    def names(self) -> list[str]:
        return sorted(self._targets)


# --- what callers give ------------------------------------------------------------------------------------


class Texts(NamedTuple):
    """Metadata and payload as they are stored: as JSON."""

    metadata: str
    payload: str


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to be created, checked. `assistant` is an id, or the name of an agent."""

    target: str
    expression: str
    timezone: str | None
    enabled: bool
    end_at: int | None
    assistant: str | None
    thread_id: str | None
    user_id: str | None
    labels: Mapping[str, Any]
    """The metadata, to be searched by."""
    texts: Texts


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What changes of a schedule, checked. `texts` replace those that were read before, `known`."""

    expression: str | UnsetType = UNSET
    timezone: str | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    end_at: int | UnsetType | None = UNSET
    labels: Mapping[str, Any]
    texts: Texts
    known: Texts

    @property
    def moves(self) -> bool:
        """Whether the time at which the schedule comes next changes with it."""
        return any(
            value is not UNSET for value in (self.expression, self.timezone, self.enabled, self.end_at)
        )


class Search(NamedTuple):
    """Which schedules, in which order, and which page of them."""

    assistant_id: str | None
    thread_id: str | None
    enabled: bool | None
    metadata: Mapping[str, Any]
    sort_by: str
    sort_order: str
    limit: int
    offset: int


def check_object(value: object, what: str) -> dict[str, Any]:
    """An object that can be stored as JSON."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(f"{what} must be an object with strings as keys")
    encode_json(dict(value), what=what)
    return dict(value)


def check_metadata(value: object) -> dict[str, Any]:
    """Metadata that can be stored and searched for."""
    metadata = check_object(value, "metadata")
    encode_metadata(metadata)
    return metadata


def encoded(metadata: Mapping[str, Any], payload: Mapping[str, Any], known: str = "{}") -> Texts:
    """Metadata, which replaces what is `known`, and payload as they are stored."""
    return Texts(encode_metadata(metadata, known=known), encode_json(payload, what="payload"))


def check_end(value: object) -> int | None:
    """A time in epoch seconds as microseconds; None is no end."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < to_seconds(LATEST):
        raise InvalidInput(f"end_time is {value!r}; it must be a time in seconds since 1970")
    return to_micros(value)


# --- rules ------------------------------------------------------------------------------------------------


def comes_next(
    expression: str, timezone: str | None, *, enabled: bool, end_at: int | None, after: int
) -> int | None:
    """When a schedule fires next: never while it is paused, and never after its end."""
    if not enabled:
        return None
    time = next_time(expression, timezone, after)
    return None if time is None or (end_at is not None and time > end_at) else time


def is_over(due_at: int, end_at: int | None, now: int) -> bool:
    """Whether a schedule whose time has come has ended, so that it does not fire any more."""
    return end_at is not None and (due_at > end_at or now > end_at + LATE)


# --- rows -------------------------------------------------------------------------------------------------


class ScheduleRow(msgspec.Struct):
    """A row of `schedules`."""

    id: str
    target: str
    expression: str
    timezone: str | None
    enabled: int
    next_at: int | None
    end_at: int | None
    assistant_id: str | None
    thread_id: str | None
    user_id: str | None
    created_at: int
    updated_at: int
    fired_at: int | None
    fired: int
    refused: int
    started_id: str | None
    error: str | None
    metadata: str
    payload: str

    @property
    def texts(self) -> Texts:
        return Texts(self.metadata, self.payload)

    def comes_next(self, after: int) -> int | None:
        return comes_next(
            self.expression, self.timezone, enabled=bool(self.enabled), end_at=self.end_at, after=after
        )


class FiringRow(NamedTuple):
    """A row of `firings`."""

    schedule_id: str
    due_at: int
    fired_at: int
    started_id: str | None
    error: str | None


class Prepared(NamedTuple):
    """A due schedule as it was read, and what its target prepared for it, or why it could not."""

    row: ScheduleRow
    start: Any

    def is_current(self, row: ScheduleRow) -> bool:
        """Whether nothing has changed since that matters for what is started."""
        return (row.next_at, row.texts) == (self.row.next_at, self.row.texts)


def order_of(row: ScheduleRow, due_at: int) -> Order:
    """What the target of a schedule is to start."""
    return Order(
        schedule_id=row.id,
        due_at=due_at,
        assistant_id=row.assistant_id,
        thread_id=row.thread_id,
        metadata=decode_json(row.metadata),
        payload=decode_json(row.payload),
    )


def schedule_of(row: ScheduleRow) -> Schedule:
    """The record of a schedule."""
    return Schedule(
        schedule_id=row.id,
        target=row.target,
        expression=row.expression,
        timezone=row.timezone,
        enabled=bool(row.enabled),
        next_at=to_seconds_or_none(row.next_at),
        end_time=to_seconds_or_none(row.end_at),
        assistant_id=row.assistant_id,
        thread_id=row.thread_id,
        user_id=row.user_id,
        created_at=to_seconds(row.created_at),
        updated_at=to_seconds(row.updated_at),
        fired_at=to_seconds_or_none(row.fired_at),
        fired=row.fired,
        refused=row.refused,
        started_id=row.started_id,
        error=row.error,
        metadata=decode_json(row.metadata),
        payload=_shown(decode_json(row.payload)),
    )


def _shown(payload: dict[str, Any]) -> dict[str, Any]:
    """A payload as it may be shown: its webhook loses its credentials."""
    webhook = payload.get("webhook")
    return {**payload, "webhook": mask_target(webhook)} if isinstance(webhook, str) else payload


def firing_of(row: FiringRow) -> Firing:
    """The record of a firing."""
    return Firing(
        schedule_id=row.schedule_id,
        due_at=to_seconds(row.due_at),
        fired_at=to_seconds(row.fired_at),
        started_id=row.started_id,
        error=row.error,
    )
