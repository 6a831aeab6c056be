"""What the native door takes and gives, beyond the records of the rooms."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.access.endpoints import Ok as Ok
from perdure.kernel.signals.port import CarrierStatus
from perdure.rollouts.contract import FilterLogic, SortOrder
from perdure.rollouts.records import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    TaskInput,
    WorkerStatus,
)

MAX_PAGE = 1000
MAX_BATCH = 1000

T = TypeVar("T")
Metadata = dict[str, Any]
Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Offset = Annotated[int, Meta(ge=0, le=2**53)]


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body whose every field is known: a misspelt one is refused."""


# --- rollouts and attempts --------------------------------------------------------------------------------


class RolloutBatch(Body, kw_only=True):
    """Rollouts for the queue, in their order."""

    rollouts: Annotated[list[EnqueueRolloutRequest], Meta(max_length=MAX_BATCH)]


class NewStart(Body, kw_only=True):
    """A rollout that begins at once, past the queue."""

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: Metadata | None = None
    worker_id: str | None = None


class RolloutPatch(Body, kw_only=True):
    """What is set; a field that is left out keeps its value."""

    input: TaskInput | UnsetType = UNSET
    mode: RolloutMode | UnsetType | None = UNSET
    resources_id: str | UnsetType | None = UNSET
    status: RolloutStatus | UnsetType = UNSET
    config: RolloutConfig | UnsetType = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class AttemptPatch(Body, kw_only=True):
    """What is set; a field that is left out keeps its value."""

    status: AttemptStatus | UnsetType = UNSET
    worker_id: str | UnsetType = UNSET
    last_heartbeat_time: float | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class NewAttempt(Body, kw_only=True):
    """Who begins the attempt."""

    worker_id: str | None = None


class Dequeue(Body, kw_only=True):
    """Who claims how much, and from which queue."""

    worker_id: str | None = None
    queue: str = "default"
    limit: Limit = 1


class Heartbeat(Body, kw_only=True):
    """How a worker is; without statistics the last ones stay."""

    heartbeat_stats: Metadata | UnsetType = UNSET


class ShownRollout(Rollout, kw_only=True):
    """A rollout, with its latest attempt if it has one."""

    attempt: Attempt | None = None


class Rollouts(msgspec.Struct, kw_only=True):
    """The rollouts that were queued, in the order of the request."""

    rollouts: list[Rollout]


class Claimed(msgspec.Struct, kw_only=True):
    """The rollouts that were claimed, each with its new attempt; none if the queue is empty."""

    rollouts: list[AttemptedRollout]


# --- pages ------------------------------------------------------------------------------------------------


class Items(msgspec.Struct, Generic[T], kw_only=True):
    """A list that is given whole."""

    items: list[T]


class PageQuery(msgspec.Struct, kw_only=True):
    """Which page."""

    limit: Limit = 100
    offset: Offset = 0


class SortedQuery(PageQuery, kw_only=True):
    """Which page, and in which order."""

    sort_by: str | None = None
    sort_order: SortOrder = "asc"


class RolloutQuery(SortedQuery, kw_only=True):
    """Which rollouts; the newest first unless another order is asked for."""

    status: list[RolloutStatus] | None = None
    rollout_id: list[str] | None = None
    contains: str | None = None
    logic: FilterLogic = "and"
    sort_by: str | None = "start_time"
    sort_order: SortOrder = "desc"


class AttemptQuery(SortedQuery, kw_only=True):
    """Which attempts, the first one first."""

    sort_by: str | None = "sequence_id"


class SpanQuery(SortedQuery, kw_only=True):
    """Which spans of a rollout; `attempt_id` may be `latest`."""

    attempt_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    parent_id: str | None = None
    name: str | None = None
    name_contains: str | None = None
    logic: FilterLogic = "and"
    sort_by: str | None = "sequence_id"


class WorkerQuery(SortedQuery, kw_only=True):
    """Which workers."""

    status: list[WorkerStatus] | None = None
    contains: str | None = None
    logic: FilterLogic = "and"


class ResourcesQuery(SortedQuery, kw_only=True):
    """Which resources."""

    resources_id: str | None = None
    contains: str | None = None


# --- the server -------------------------------------------------------------------------------------------

HealthStatus = Literal["ok", "degraded"]


class Health(msgspec.Struct, kw_only=True):
    """Whether the server answers."""

    status: HealthStatus = "ok"


class Ready(msgspec.Struct, kw_only=True):
    """Whether the server can do its work."""

    status: HealthStatus
    database: HealthStatus
    indexes_being_built: list[str]
    redis: CarrierStatus | UnsetType = UNSET
    """Said where one carries hints; without it everything works, a poll later."""


class HealthDetail(Ready, kw_only=True):
    """The same for those who may know more."""

    reason: str | None
    engine: str | None
    connections: dict[str, int] | None
    redis_reason: str | UnsetType | None = UNSET
    redis_connections: dict[str, int] | UnsetType = UNSET


class Info(msgspec.Struct, kw_only=True):
    """What this is."""

    name: str
    version: str
    protocols: list[str]
    langgraph_py_version: str | None = None
    """The release of LangGraph that is installed beside it, if any."""
    flags: dict[str, bool] = msgspec.field(default_factory=dict)
    """What clients of LangGraph's server ask for, and whether it is there."""
    host: dict[str, str | None] = msgspec.field(default_factory=dict)


class OkQuery(msgspec.Struct, kw_only=True):
    """Whether the database must answer too."""

    check_db: bool = False


class MetricsQuery(msgspec.Struct, kw_only=True):
    """In which form, and whether also by the names that boards for LangGraph's server read.

    `prometheus` is text with those names.
    """

    format: Literal["text", "json", "prometheus"] = "text"
    aliases: bool = False


class Sample(msgspec.Struct, kw_only=True):
    """One number, with what tells it from others of its name."""

    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(msgspec.Struct, kw_only=True):
    """What is counted under one name."""

    name: str
    type: str
    help: str
    samples: list[Sample]
