"""Records of rollouts, attempts and workers, and the requests for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypedDict, cast, get_args

from msgspec import UNSET, Meta, Raw, Struct, field, structs
from msgspec import UnsetType as Unset

from perdure.kernel.checks import MAX_TEXT, check_choice, check_text
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.kernel.pages import PaginatedResult
from perdure.kernel.record import Record
from perdure.service.endpoints import Refusal, WireForm

__all__ = [
    "ATTEMPT_STATUSES",
    "MAX_SPANS",
    "ROLLOUT_MODES",
    "ROLLOUT_STATUSES",
    "UNSET",
    "WORKER_STATUSES",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "EnqueueRolloutRequest",
    "LightningStoreCapabilities",
    "LightningStoreStatistics",
    "PaginatedResult",
    "Rollout",
    "RolloutConfig",
    "RolloutMode",
    "RolloutStatus",
    "TaskInput",
    "Unset",
    "Worker",
    "WorkerStatus",
    "is_finished",
    "is_queuing",
    "is_running",
]

TaskInput = Any

RolloutStatus = Literal["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
RolloutMode = Literal["train", "val", "test"]
WorkerStatus = Literal["idle", "busy", "unknown"]

ROLLOUT_STATUSES: Final[tuple[RolloutStatus, ...]] = get_args(RolloutStatus)
ATTEMPT_STATUSES: Final[tuple[AttemptStatus, ...]] = get_args(AttemptStatus)
ROLLOUT_MODES: Final[tuple[RolloutMode, ...]] = get_args(RolloutMode)
WORKER_STATUSES: Final[tuple[WorkerStatus, ...]] = get_args(WorkerStatus)

MAX_SPANS = 2000
"""Maximum number of spans, or of sequence ids for spans, in one request."""
MAX_SECONDS = 1e12
"""Limit of times, in seconds: larger ones do not fit a 64-bit count of microseconds."""

_ShortText = Annotated[str, Meta(max_length=MAX_TEXT // 4, pattern=r"\A[^\0]*\Z")]
"""A text that `check_text` accepts whatever the size of its characters in bytes."""


def _check_seconds(value: object, what: str, *, least: float = 0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{what} must be a number or None, not {type(value).__name__}")
    if not least <= value <= MAX_SECONDS:
        raise InvalidInput(f"{what} must lie between {least:g} and {MAX_SECONDS:g}, not {value!r}")
    return float(value)


class RolloutConfig(Record, kw_only=True):
    """When an attempt times out, and which endings are retried."""

    timeout_seconds: float | None = None
    """How long an attempt may run; None for no limit."""
    unresponsive_seconds: float | None = None
    """How long an attempt may go without a heartbeat; None for no limit."""
    max_attempts: int = 1
    """Maximum number of attempts, including the first."""
    retry_condition: list[AttemptStatus] = field(default_factory=list)
    """The attempt statuses that lead to another attempt."""

    def __post_init__(self) -> None:
        if self.timeout_seconds is not None:
            self.timeout_seconds = _check_seconds(self.timeout_seconds, "RolloutConfig.timeout_seconds")
        if self.unresponsive_seconds is not None:
            self.unresponsive_seconds = _check_seconds(
                self.unresponsive_seconds, "RolloutConfig.unresponsive_seconds"
            )
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise InvalidInput(
                f"RolloutConfig.max_attempts must be a whole number, 1 or above, not {self.max_attempts!r}"
            )
        if self.retry_condition or type(self.retry_condition) is not list:
            self.retry_condition = _check_retry_condition(self.retry_condition)


def _check_retry_condition(condition: object) -> list[AttemptStatus]:
    if not isinstance(condition, list | tuple | set | frozenset):
        raise InvalidInput(
            f"RolloutConfig.retry_condition must be a list of statuses, not {type(condition).__name__}"
        )
    for status in condition:
        check_choice(status, ATTEMPT_STATUSES, "RolloutConfig.retry_condition")
    return list(condition)


class Rollout(Record, kw_only=True):
    """A unit of work: its input, its status, and how it is retried."""

    rollout_id: str
    input: TaskInput
    start_time: float
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus = "queuing"
    config: RolloutConfig = field(default_factory=RolloutConfig)
    metadata: dict[str, Any] | None = None
    parent: str | Unset = UNSET
    """The id of the run or object that it is a part of; absent if it is not a part."""

    def __post_init__(self) -> None:
        if self.status not in ROLLOUT_STATUSES:
            check_choice(self.status, ROLLOUT_STATUSES, "Rollout.status")
        if self.mode is not None:
            check_choice(self.mode, ROLLOUT_MODES, "Rollout.mode")
        if type(self.config) is not RolloutConfig:
            self.config = RolloutConfig.model_validate(self.config)


class RolloutAnswer(Struct, kw_only=True, gc=False):
    """A rollout as sent over HTTP: the fields of `Rollout`, with bodies as they are stored."""

    rollout_id: str
    input: Raw
    start_time: float
    end_time: float | None
    mode: str | None
    resources_id: str | None
    status: str
    config: RolloutConfig | Raw
    metadata: Raw
    parent: str | Unset


class Attempt(Record, kw_only=True):
    """One execution of a rollout by a worker."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """Number of the attempt within its rollout, from 1."""
    start_time: float
    end_time: float | None = None
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.status not in ATTEMPT_STATUSES:
            check_choice(self.status, ATTEMPT_STATUSES, "Attempt.status")


class AttemptedRollout(Rollout, kw_only=True):
    """A rollout with its latest attempt."""

    attempt: Attempt

    def __post_init__(self) -> None:
        Rollout.__post_init__(self)
        if type(self.attempt) is not Attempt:
            self.attempt = Attempt.model_validate(self.attempt)
        if self.attempt.rollout_id != self.rollout_id:
            raise InvalidInput(
                f"AttemptedRollout.attempt is of rollout {self.attempt.rollout_id}, not {self.rollout_id}"
            )


class UsualRequest(Struct, kw_only=True, gc=False):
    """A rollout to enqueue in the most common form: checked while its JSON is decoded, with short texts.

    It is stored like the `EnqueueRolloutRequest` with the same fields.
    """

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: _ShortText | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None
    queue: _ShortText = "default"
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    not_before: Annotated[float, Meta(ge=-MAX_SECONDS, le=MAX_SECONDS)] | None = None
    idempotency_key: _ShortText | None = None


class EnqueueRolloutRequest(Record, kw_only=True):
    """A rollout to enqueue."""

    _usual = UsualRequest

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None
    queue: str = "default"
    """The queue of the rollout."""
    priority: int = 0
    """A higher priority is claimed first within a queue."""
    not_before: float | None = None
    """Epoch second before which the rollout is not claimed."""
    idempotency_key: str | None = None
    """A second request with the same key returns the rollout of the first."""

    def __post_init__(self) -> None:
        if self.mode is not None:
            check_choice(self.mode, ROLLOUT_MODES, "EnqueueRolloutRequest.mode")
        if self.config is not None and type(self.config) is not RolloutConfig:
            self.config = RolloutConfig.model_validate(self.config)
        if self.metadata is not None:
            self.metadata = _check_metadata(self.metadata)
        check_text(self.queue, "EnqueueRolloutRequest.queue")
        if self.resources_id is not None:
            check_text(self.resources_id, "EnqueueRolloutRequest.resources_id")
        if self.idempotency_key is not None:
            check_text(self.idempotency_key, "EnqueueRolloutRequest.idempotency_key")
        if self.priority != 0 or type(self.priority) is not int:
            _check_priority(self.priority)
        if self.not_before is not None:
            what = "EnqueueRolloutRequest.not_before"
            self.not_before = _check_seconds(self.not_before, what, least=-MAX_SECONDS)


AnyRequest = EnqueueRolloutRequest | UsualRequest


def parse_request(request: AnyRequest) -> EnqueueRolloutRequest:
    """Convert a request of either form to the record."""
    if type(request) is UsualRequest:
        return EnqueueRolloutRequest(**structs.asdict(request))
    return cast(EnqueueRolloutRequest, request)


def _check_metadata(metadata: object) -> dict[str, Any]:
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise InvalidInput("EnqueueRolloutRequest.metadata must be an object with strings as keys, or None")
    return dict(metadata)


def _check_priority(priority: object) -> None:
    if not isinstance(priority, int) or isinstance(priority, bool) or not -(2**31) <= priority < 2**31:
        raise InvalidInput(f"EnqueueRolloutRequest.priority must be a 32-bit whole number, not {priority!r}")


class ShownRollout(Rollout, kw_only=True):
    """A rollout as the native API shows it, with its latest attempt if it has one."""

    attempt: Attempt | None = None


def _parse_shown(shown: ShownRollout) -> Rollout:
    fields = structs.asdict(shown)
    if fields["attempt"] is None:
        del fields["attempt"]
        return Rollout(**fields)
    return AttemptedRollout(**fields)


AnyRollout = Annotated[Rollout, WireForm(ShownRollout, lambda rollout: rollout, _parse_shown)]
"""A rollout, with its latest attempt if it has one."""


class AttemptUpdate(Record, kw_only=True):
    """A report on an attempt; fields that are left out do not change."""

    rollout_id: str
    attempt_id: str
    """The id of the attempt, or `latest`."""
    status: AttemptStatus | Unset = UNSET
    worker_id: str | Unset = UNSET
    last_heartbeat_time: float | Unset = UNSET
    metadata: dict[str, Any] | Unset = UNSET


class ReportAnswer(Record, kw_only=True):
    """The attempt after a report, or the reason why the report was refused."""

    attempt: Attempt | None = None
    error: Refusal | None = None


def _build_report_answer(answer: Attempt | PerdureError) -> ReportAnswer:
    if isinstance(answer, PerdureError):
        return ReportAnswer(error=Refusal.of(answer))
    return ReportAnswer(attempt=answer)


def _parse_report_answer(answer: ReportAnswer) -> Attempt | PerdureError:
    return cast(Attempt, answer.attempt) if answer.error is None else answer.error.error


ReportedAttempt = Annotated[
    Attempt | PerdureError, WireForm(ReportAnswer, _build_report_answer, _parse_report_answer)
]
"""An attempt after a report, or the reason why the report was refused."""


class StoredSpans(Record, kw_only=True):
    """For each span, in order, whether it was new."""

    stored: list[bool]


class Worker(Record, kw_only=True):
    """A worker, with its status from heartbeats and attempts."""

    worker_id: str
    status: WorkerStatus = "unknown"
    heartbeat_stats: dict[str, Any] | None = None
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None

    def __post_init__(self) -> None:
        if self.status not in WORKER_STATUSES:
            check_choice(self.status, WORKER_STATUSES, "Worker.status")


class HeldAttempt(Record, kw_only=True):
    """An attempt that a worker executes."""

    rollout_id: str
    attempt_id: str
    kind: str
    """`run`, `task` or another kind of rollout."""
    start_time: float


class WorkerDetails(Worker, kw_only=True):
    """A worker with all attempts that it executes."""

    held: list[HeldAttempt] = field(default_factory=list)
    """Attempts that the worker executes, the oldest first, at most 1,000 in one answer."""
    stopped_at: float | None = None
    """When the worker signed off or was found dead; None while it may claim."""
    draining_since: float | None = None
    """Time since which the worker claims no more and finishes its attempts; None unless it is drained."""


def is_queuing(rollout: Rollout) -> bool:
    """Return whether the rollout waits in the queue."""
    return rollout.status in ("queuing", "requeuing")


def is_running(rollout: Rollout) -> bool:
    """Return whether an attempt of the rollout is under way."""
    return rollout.status in ("preparing", "running")


def is_finished(rollout: Rollout) -> bool:
    """Return whether the rollout has ended."""
    return rollout.status in ("failed", "succeeded", "cancelled")


class LightningStoreCapabilities(TypedDict, total=False):
    """Capabilities of a store; an absent key means no."""

    thread_safe: bool
    async_safe: bool
    zero_copy: bool
    otlp_traces: bool


class LightningStoreStatistics(TypedDict, total=False):
    """Numbers of the objects in a store, and its sizes in bytes."""

    name: str
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    total_workers: int
    uptime: float
    total_span_bytes: int
    eviction_threshold_bytes: int
    safe_threshold_bytes: int
    memory_capacity_bytes: int
