"""The rules of schedules, and the ports to what they start. Everything here is pure."""

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
"""How late a time counts as missed, and how long after its end a schedule fires for a time before it."""
MADE_UP: Final = to_micros(7 * 86_400.0)
"""How far back times that were missed are made up for, where all of them are."""
KEPT_FIRINGS = 100
"""How many firings of a schedule are kept, and how many that were skipped."""
LATEST: Final = to_micros(250_000_000_000.0)
"""The latest time that is accepted, in the year 9892."""
MAX_NAME: Final = 128
MAX_JITTER: Final = 86_400.0
MAX_TIMEOUT: Final = 30 * 86_400.0
MAX_RESULT: Final = 4096
"""How many characters of the result of what was started are kept with a firing."""

Origin = Literal["api", "code", "file"]
Overlap = Literal["skip", "concurrent"]
Misfire = Literal["once", "skip", "all"]
Source = Literal["schedule", "manual"]
API: Final = "api"
CODE: Final = "code"
FILE: Final = "file"
MANAGED: Final = frozenset({CODE, FILE})
"""Where a schedule is defined elsewhere: what callers change of it is an override."""
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
    """The status of a firing after these events, from the time that its jitter is over."""
    status = FIRING.step(FIRING.start["cron time"], "wait")
    for event in events:
        status = FIRING.step(status, event)
    return status


def get_firing_result(status: str) -> str:
    """What is kept of a firing that is over: a paused one was skipped."""
    return SKIPPED if status == PAUSED else status


# --- what schedules start ---------------------------------------------------------------------------------


class FiringRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a target starts for a schedule. `due_at` is the time that has come, in microseconds."""

    schedule_id: str
    due_at: int
    assistant_id: str | None
    thread_id: str | None
    metadata: Mapping[str, Any]
    payload: Mapping[str, Any]
    name: str | None = None
    timeout: float | None = None
    """How many seconds what is started may take."""
    source: str = SCHEDULE
    actor: str | None = None
    """Who triggered it by hand."""


class FiringOutcome(NamedTuple):
    """How what a firing started has ended; `status` is None if that is not known any more."""

    status: str | None
    duration: int | None = None
    """In microseconds."""
    error: str | None = None
    result: str | None = None
    """What came of it, as JSON."""

    @property
    def event(self) -> str:
        return {SUCCESS: "succeeded", FAILED: "failed", None: "removed"}[self.status]


class ScheduleTarget(Protocol):
    """What schedules of one kind start."""

    @property
    def name(self) -> str: ...

    def prepare(self, order: FiringRequest) -> Any:
        """Check an order and encode what `start` needs; raises what is wrong with it."""
        ...

    async def refusal(self, tx: Tx, thread_id: str | None) -> PerdureError | None:
        """Why no schedule can be created for this thread, or None."""
        ...

    async def start(self, tx: Tx, prepared: Sequence[Any]) -> Sequence[str | PerdureError]:
        """Start what was prepared; answers each with the id of what was started, or with an error."""
        ...

    async def find(self, tx: Tx, started: Sequence[str]) -> Mapping[str, Any]:
        """Read what was started, by its ids. What was removed is left out."""
        ...

    def outcome(self, found: Any) -> FiringOutcome | None:
        """How something that was found has ended, or None while it has not."""
        ...

    def ended_key(self, ns: int, started_id: str) -> tuple[str, str]:
        """The channel and the key of the hint that it has ended."""
        ...


class ScheduleTargets:
    """The targets that this process knows. Schedules of any other are left to other processes."""

    def __init__(self, *targets: ScheduleTarget) -> None:
        self._targets = {target.name: target for target in targets}

    def __getitem__(self, name: str) -> ScheduleTarget:
        if name not in self._targets:
            raise InvalidInput(f"there is no target {name!r} for a schedule")
        return self._targets[name]

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def add(self, target: ScheduleTarget) -> None:
        """Start what schedules of one more target ask for."""
        self._targets[target.name] = target

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
    name: str | None = None
    origin: str = API
    file: str | None = None
    """The name of the file that defines it."""
    jitter: int = 0
    overlap: str = CONCURRENT
    misfire: str = ONCE
    timeout: int | None = None
    unless: str | None = None
    """The name of a condition under which it does not fire."""


class ScheduleChange(msgspec.Struct, frozen=True, kw_only=True):
    """What changes of a schedule, checked. `texts` replace those that were read before, `known`."""

    expression: str | UnsetType = UNSET
    timezone: str | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    end_at: int | UnsetType | None = UNSET
    jitter: int | UnsetType = UNSET
    overlap: str | UnsetType = UNSET
    misfire: str | UnsetType = UNSET
    timeout: int | UnsetType | None = UNSET
    labels: Mapping[str, Any]
    texts: Texts
    known: Texts

    @property
    def moves(self) -> bool:
        """Whether the time at which the schedule comes next changes with it."""
        return any(
            value is not UNSET
            for value in (self.expression, self.timezone, self.enabled, self.end_at, self.jitter)
        )


class OverrideChange(NamedTuple):
    """What changes of an override; a schedule of None goes back to that of the definition."""

    enabled: bool | UnsetType
    schedule: str | UnsetType | None


class ScheduleFilter(NamedTuple):
    """Which schedules, in which order, and which page of them."""

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


def check_schedule_name(value: object) -> str | None:
    """The name of a schedule: letters, digits and `_.:-`, the first a letter or a digit."""
    if value is None:
        return None
    name = check_text(value, "name", max_length=MAX_NAME)
    plain = name.replace("_", "0").replace(".", "0").replace(":", "0").replace("-", "0")
    if not (name[:1].isalnum() and plain.isascii() and plain.isalnum()):
        raise InvalidInput(
            f"name is {name!r}; it must be of letters, digits and '_', '.', ':', '-', and begin with a letter"
            " or a digit"
        )
    return name


def check_seconds(value: object, what: str, most: float) -> int:
    """A number of seconds as microseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InvalidInput(f"{what} is {value!r}; it must be a number of seconds from 0 to {most:g}")
    return to_micros(value)


def check_timeout(value: object) -> int | None:
    """The seconds that what is started may take, as microseconds; None is the default of the target."""
    if value is None:
        return None
    return check_seconds(value, "timeout", MAX_TIMEOUT) or None


# --- rules ------------------------------------------------------------------------------------------------


def comes_next(expression: str, timezone: str | None, *, end_at: int | None, after: int) -> int | None:
    """The next time of a schedule: never after its end."""
    time = next_time(expression, timezone, after)
    return None if time is None or (end_at is not None and time > end_at) else time


def upcoming(
    expression: str, timezone: str | None, *, end_at: int | None, after: int, limit: int
) -> list[float]:
    """The next times of a schedule in epoch seconds, without its jitter."""
    times: list[float] = []
    time: int | None = after
    while len(times) < limit and time is not None:
        time = comes_next(expression, timezone, end_at=end_at, after=time)
        times += [] if time is None else [to_seconds(time)]
    return times


def compute_jitter(schedule_id: str, due_at: int, most: int) -> int:
    """How long after a time its schedule fires: evenly spread below `most`, and the same for the same time.

    Since it follows from the id and the time, whichever process computes it gets the same.
    """
    if most <= 0:
        return 0
    share = zlib.crc32(f"{schedule_id}/{due_at}".encode()) / (1 << 32)
    return int(share * most)


def is_over(due_at: int, end_at: int | None, now: int) -> bool:
    """Whether a schedule whose time has come has ended, so that it does not fire any more."""
    return end_at is not None and (due_at > end_at or now > end_at + LATE)


def skip_event(*, enabled: bool, overlap: str, misfire: str, late: int, unmet: bool, running: int) -> str:
    """The event that ends a firing before it starts anything, or `started`."""
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
    """After which time the next one is looked for: of those that were missed, only `all` fires each."""
    return max(due_at, now - MADE_UP) if misfire == ALL else max(due_at, now)
