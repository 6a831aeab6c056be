"""Rules of schedules, and the port to their targets. This module is pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from perdure.kernel.checks import check_text
from perdure.kernel.clock import to_micros, to_seconds
from perdure.kernel.codec import encode_json
from perdure.kernel.cron import next_time
from perdure.kernel.cursors import Place
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.kernel.machine import Machine
from perdure.kernel.storage import filters
from perdure.kernel.storage.labels import encode_metadata
from perdure.kernel.storage.port import Tx

LATE: Final = to_micros(60.0)
"""A time counts as missed after this delay. After its end, a schedule still fires earlier times this long."""
MADE_UP: Final = to_micros(7 * 86_400.0)
"""Range of the missed times that `misfire: all` still fires."""
KEPT_FIRINGS = 100
"""Number of kept firings of a schedule, and of kept skipped firings."""
LATEST: Final = to_micros(250_000_000_000.0)
"""The latest accepted time, in the year 9892."""
MAX_NAME: Final = 128
MAX_JITTER: Final = 86_400.0
MAX_TIMEOUT: Final = 30 * 86_400.0
MAX_RESULT: Final = 4096
"""Limit of characters of a result that is stored with a firing."""

Origin = Literal["api", "code", "file"]
Overlap = Literal["skip", "concurrent"]
Misfire = Literal["once", "skip", "all"]
Source = Literal["schedule", "manual"]
API: Final = "api"
CODE: Final = "code"
FILE: Final = "file"
MANAGED: Final = frozenset({CODE, FILE})
"""Origins with a definition elsewhere: changes by callers are overrides."""
SKIP: Final = "skip"
CONCURRENT: Final = "concurrent"
ONCE: Final = "once"
ALL: Final = "all"
SCHEDULE: Final = "schedule"
MANUAL: Final = "manual"


# --- state machines -----------------------------------------------------------------------------------------

IDLE: Final = "idle"
RUNNING: Final = "running"
STOPPING: Final = "stopping"

SCHEDULER: Final = Machine("scheduler", (IDLE, RUNNING, STOPPING), start={"created": IDLE}, final=())
SCHEDULER.on("start", [IDLE], RUNNING)
SCHEDULER.on("stop", [RUNNING], STOPPING)
SCHEDULER.on("firings have ended", [STOPPING], IDLE)

PENDING: Final = "pending"
JITTER: Final = "jitter"
PAUSED: Final = "paused"
CHECK_OVERLAP: Final = "check_overlap"
SKIPPED: Final = "skipped"
SUCCESS: Final = "success"
FAILED: Final = "failed"
COMPLETED: Final = "completed"

FIRING: Final = Machine(
    "firing",
    (PENDING, JITTER, PAUSED, CHECK_OVERLAP, SKIPPED, RUNNING, SUCCESS, FAILED, COMPLETED),
    start={"cron time": PENDING},
    final=(COMPLETED,),
)
FIRING.on("wait", [PENDING], JITTER)
FIRING.on("paused", [JITTER], PAUSED)
FIRING.on("not paused", [JITTER], CHECK_OVERLAP)
FIRING.on("overlap", [CHECK_OVERLAP], SKIPPED)
FIRING.on("condition", [CHECK_OVERLAP], SKIPPED)
FIRING.on("misfire", [CHECK_OVERLAP], SKIPPED)
FIRING.on("started", [CHECK_OVERLAP], RUNNING)
FIRING.on("refused", [CHECK_OVERLAP], FAILED)
FIRING.on("succeeded", [RUNNING], SUCCESS)
FIRING.on("failed", [RUNNING], FAILED)
FIRING.on("removed", [RUNNING], COMPLETED)
FIRING.on("recorded", [PAUSED, SKIPPED, SUCCESS, FAILED], COMPLETED)


def status_after(*events: str) -> str:
    """Return the status of a firing after these events, starting when its jitter is over."""
    status = FIRING.step(FIRING.start["cron time"], "wait")
    for event in events:
        status = FIRING.step(status, event)
    return status


def get_firing_result(status: str) -> str:
    """Return the stored result of an ended firing; a paused one was skipped."""
    return SKIPPED if status == PAUSED else status


# --- what schedules start ---------------------------------------------------------------------------------


class FiringRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a target to start something. `due_at` is the due time in microseconds."""

    schedule_id: str
    due_at: int
    assistant_id: str | None
    thread_id: str | None
    metadata: Mapping[str, Any]
    payload: Mapping[str, Any]
    name: str | None = None
    timeout: float | None = None
    """Time limit of the started work in seconds."""
    source: str = SCHEDULE
    actor: str | None = None
    """The caller that triggered the firing by hand."""


class FiringOutcome(NamedTuple):
    """The outcome of a firing's work; `status` is None if it is no longer known."""

    status: str | None
    duration: int | None = None
    """In microseconds."""
    error: str | None = None
    result: str | None = None
    """The result as JSON."""

    @property
    def event(self) -> str:
        return {SUCCESS: "succeeded", FAILED: "failed", None: "removed"}[self.status]


class ScheduleTarget(Protocol):
    """Port to what schedules of one kind start."""

    @property
    def name(self) -> str: ...

    def prepare(self, order: FiringRequest) -> Any:
        """Check a request and encode the input of `start`; raise an error if it is invalid."""
        ...

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        """Return why no schedule can be created for this thread, or None."""
        ...

    async def start(self, tx: Tx, prepared: Sequence[Any]) -> Sequence[str | PerdureError]:
        """Start the prepared work; return an id or an error for each."""
        ...

    async def find(self, tx: Tx, started: Sequence[str]) -> Mapping[str, Any]:
        """Read the started work by id. Deleted work is left out."""
        ...

    def outcome(self, work: Any) -> FiringOutcome | None:
        """Return the outcome of started work; None while it has not ended."""
        ...

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        """Return channel and key of the hint for the end of started work."""
        ...


class ScheduleTargets:
    """The targets of this process. Schedules of other targets are left to other processes."""

    def __init__(self, *targets: ScheduleTarget) -> None:
        self._targets = {target.name: target for target in targets}

    def __getitem__(self, name: str) -> ScheduleTarget:
        if name not in self._targets:
            raise InvalidInput(f"unknown schedule target {name!r}")
        return self._targets[name]

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def add(self, target: ScheduleTarget) -> None:
        """Register a target."""
        self._targets[target.name] = target

    def names(self) -> list[str]:
        return sorted(self._targets)


# --- what callers give ------------------------------------------------------------------------------------


class Texts(NamedTuple):
    """Metadata and payload as JSON."""

    metadata: str
    payload: str


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A checked schedule to be created. `assistant` is an id, or the name of an agent."""

    target: str
    expression: str
    timezone: str | None
    enabled: bool
    end_at: int | None
    assistant: str | None
    thread_id: str | None
    user_id: str | None
    labels: Mapping[str, str]
    """The encoded metadata by which lists are filtered."""
    texts: Texts
    name: str | None = None
    origin: str = API
    file: str | None = None
    """The file that defines the schedule."""
    jitter: int = 0
    overlap: str = CONCURRENT
    misfire: str = ONCE
    timeout: int | None = None
    unless: str | None = None
    """The name of a condition under which the schedule does not fire."""


class ScheduleChange(msgspec.Struct, frozen=True, kw_only=True):
    """A checked change of a schedule. `texts` replace the texts that were read before, `known`."""

    expression: str | UnsetType = UNSET
    timezone: str | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    end_at: int | UnsetType | None = UNSET
    jitter: int | UnsetType = UNSET
    overlap: str | UnsetType = UNSET
    misfire: str | UnsetType = UNSET
    timeout: int | UnsetType | None = UNSET
    labels: Mapping[str, str]
    texts: Texts
    known: Texts

    @property
    def moves(self) -> bool:
        """True if the change moves the next time of the schedule."""
        return any(
            value is not UNSET
            for value in (self.expression, self.timezone, self.enabled, self.end_at, self.jitter)
        )


class OverrideChange(NamedTuple):
    """A change of an override; a schedule of None restores that of the definition."""

    enabled: bool | UnsetType
    schedule: str | UnsetType | None


class ScheduleFilter(NamedTuple):
    """Filter, order and page of a list of schedules."""

    target: str | None
    origins: Sequence[str] | None
    name: str | None
    assistant_id: str | None
    thread_id: str | None
    enabled: bool | None
    metadata: Mapping[str, Any]
    limit: int
    offset: int
    order: filters.SortOrder
    place: Place | None


def check_object(value: object, what: str) -> dict[str, Any]:
    """Check an object that is stored as JSON."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(f"{what} must be an object with strings as keys")
    encode_json(dict(value), what=what)
    return dict(value)


def check_metadata(value: object) -> dict[str, Any]:
    """Check metadata."""
    metadata = check_object(value, "metadata")
    encode_metadata(metadata)
    return metadata


def encoded(metadata: Mapping[str, Any], payload: Mapping[str, Any], known: str = "{}") -> Texts:
    """Encode metadata, which replaces `known`, and payload."""
    return Texts(encode_metadata(metadata, known=known), encode_json(payload, what="payload"))


def check_end(value: object) -> int | None:
    """Convert a time in epoch seconds to microseconds; None is no end."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < to_seconds(LATEST):
        raise InvalidInput(f"end_time is {value!r}; it must be a time in seconds since 1970")
    return to_micros(value)


def check_schedule_name(value: object) -> str | None:
    """Check the name of a schedule: letters, digits and `_.:-`, beginning with a letter or a digit."""
    if value is None:
        return None
    name = check_text(value, "name", max_length=MAX_NAME)
    plain = name.replace("_", "0").replace(".", "0").replace(":", "0").replace("-", "0")
    if not (name[:1].isalnum() and plain.isascii() and plain.isalnum()):
        raise InvalidInput(
            f"name is {name!r}; use letters, digits and '_', '.', ':', '-', beginning with a letter"
            " or a digit"
        )
    return name


def check_seconds(value: object, what: str, most: float) -> int:
    """Convert seconds to microseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InvalidInput(f"{what} is {value!r}; it must be a number of seconds from 0 to {most:g}")
    return to_micros(value)


def check_timeout(value: object) -> int | None:
    """Convert a time limit in seconds to microseconds; None is the default of the target."""
    if value is None:
        return None
    return check_seconds(value, "timeout", MAX_TIMEOUT) or None


# --- rules ------------------------------------------------------------------------------------------------


def comes_next(expression: str, timezone: str | None, *, end_at: int | None, after: int) -> int | None:
    """Return the next time of a schedule; None after its end."""
    time = next_time(expression, timezone, after)
    return None if time is None or (end_at is not None and time > end_at) else time


def upcoming(
    expression: str, timezone: str | None, *, end_at: int | None, after: int, limit: int
) -> list[float]:
    """Return the next times of a schedule in epoch seconds, without jitter."""
    times: list[float] = []
    time: int | None = after
    while len(times) < limit and time is not None:
        time = comes_next(expression, timezone, end_at=end_at, after=time)
        times += [] if time is None else [to_seconds(time)]
    return times


def compute_jitter(schedule_id: str, due_at: int, most: int) -> int:
    """Return the delay of a firing, evenly distributed below `most`.

    The delay is derived from id and time, so that every process computes the same one.
    """
    if most <= 0:
        return 0
    share = zlib.crc32(f"{schedule_id}/{due_at}".encode()) / (1 << 32)
    return int(share * most)


def is_over(due_at: int, end_at: int | None, now: int) -> bool:
    """Return whether a due schedule has ended and no longer fires."""
    return end_at is not None and (due_at > end_at or now > end_at + LATE)


def skip_event(*, enabled: bool, overlap: str, misfire: str, late: int, unmet: bool, running: int) -> str:
    """Return the event that ends a firing before it starts anything, or `started`."""
    if not enabled:
        return "paused"
    if misfire == SKIP and late > LATE:
        return "misfire"
    if unmet:
        return "condition"
    if running and overlap == SKIP:
        return "overlap"
    return "started"


def counts_from(due_at: int, misfire: str, now: int) -> int:
    """Return the time after which the next one is searched; only `all` fires every missed time."""
    return max(due_at, now - MADE_UP) if misfire == ALL else max(due_at, now)
