"""What clients of the Agent-lightning protocol send: bodies, and the same fields in query strings."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.rollouts.contract import FilterLogic, SortOrder
from perdure.rollouts.records import (
    AttemptStatus,
    EnqueueRolloutRequest,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    TaskInput,
    WorkerStatus,
)
from perdure.rollouts.spans import Span

PREFIX = "/v1/agl"
"""Where the protocol is spoken."""
MAX_SPANS = 2000
"""How many spans, or numbers for spans, one request may carry."""
MAX_CALLS = 1000
"""How many callers may share a request."""
MAX_WAIT = 60.0
"""How many seconds a wait lasts at most; who wants to wait longer asks again."""

Metadata = dict[str, Any]
NamedResourcesBody = dict[str, Any]
SpansBody = list[Span]


class StartRollout(msgspec.Struct, kw_only=True):
    """A rollout that begins at once."""

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: Metadata | None = None
    worker_id: str | None = None


class EnqueueRollouts(msgspec.Struct, kw_only=True):
    """Rollouts for the queue, in their order."""

    rollouts: list[EnqueueRolloutRequest]


class DequeueRollouts(msgspec.Struct, kw_only=True):
    """How many rollouts a worker takes."""

    limit: int = 1
    worker_id: str | None = None
    queue: str = "default"


class Claim(DequeueRollouts, kw_only=True):
    """What one of many callers takes."""

    idempotency_key: str


class Claims(msgspec.Struct, kw_only=True):
    claims: Annotated[list[Claim], Meta(max_length=MAX_CALLS)]


class StartAttempt(msgspec.Struct, kw_only=True):
    worker_id: str | None = None


class UpdateRollout(msgspec.Struct, kw_only=True):
    """What is set; a field that is left out keeps its value, and null is a value."""

    input: TaskInput | UnsetType = UNSET
    mode: RolloutMode | UnsetType | None = UNSET
    resources_id: str | UnsetType | None = UNSET
    status: RolloutStatus | UnsetType | None = UNSET
    config: RolloutConfig | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class UpdateAttempt(msgspec.Struct, kw_only=True):
    """What is set; none of it can be null."""

    status: AttemptStatus | UnsetType | None = UNSET
    worker_id: str | UnsetType | None = UNSET
    last_heartbeat_time: float | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class Report(UpdateAttempt, kw_only=True):
    """What one of many callers sets; the id of the attempt is its own, since reports may be repeated."""

    rollout_id: str
    attempt_id: str


class Reports(msgspec.Struct, kw_only=True):
    reports: Annotated[list[Report], Meta(max_length=MAX_CALLS)]


class UpdateWorker(msgspec.Struct, kw_only=True):
    heartbeat_stats: Metadata | UnsetType | None = UNSET


class NextSequenceId(msgspec.Struct, kw_only=True):
    rollout_id: str
    attempt_id: str


class NextSequenceIds(msgspec.Struct, kw_only=True):
    """Pairs of rollout_id and attempt_id."""

    pairs: Annotated[list[tuple[str, str]], Meta(max_length=MAX_SPANS)]


class WaitForRollouts(msgspec.Struct, kw_only=True):
    rollout_ids: list[str]
    timeout: float | None = None


class Search(msgspec.Struct, kw_only=True):
    """Which page, and in which order; a limit of -1 is everything."""

    limit: int = -1
    offset: int = 0
    sort_by: str | None = None
    sort_order: SortOrder = "asc"


class RolloutSearch(Search, kw_only=True):
    status_in: list[RolloutStatus] | None = None
    rollout_id_in: list[str] | None = None
    rollout_id_contains: str | None = None
    filter_logic: FilterLogic = "and"


class AttemptSearch(Search, kw_only=True):
    sort_by: str | None = "sequence_id"


class ResourcesSearch(Search, kw_only=True):
    resources_id: str | None = None
    resources_id_contains: str | None = None


class SpanSearch(Search, kw_only=True):
    rollout_id: str
    attempt_id: str | None = None
    trace_id: str | None = None
    trace_id_contains: str | None = None
    span_id: str | None = None
    span_id_contains: str | None = None
    parent_id: str | None = None
    parent_id_contains: str | None = None
    name: str | None = None
    name_contains: str | None = None
    filter_logic: FilterLogic = "and"
    sort_by: str | None = "sequence_id"


class WorkerSearch(Search, kw_only=True):
    status_in: list[WorkerStatus] | None = None
    worker_id_contains: str | None = None
    filter_logic: FilterLogic = "and"


# --- answers that are no records ----------------------------------------------------------------------------


class Health(msgspec.Struct, kw_only=True):
    status: str = "ok"


class SequenceId(msgspec.Struct, kw_only=True):
    sequence_id: int


class SequenceIds(msgspec.Struct, kw_only=True):
    sequence_ids: list[int]


class StoredSpans(msgspec.Struct, kw_only=True):
    """For each span, in order, whether it was new."""

    stored: list[bool]
