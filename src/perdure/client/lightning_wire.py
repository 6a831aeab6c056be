"""Requests of the Agent-lightning protocol: bodies, and the same fields in query strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.rollouts.contract import LightningStore
from perdure.rollouts.records import (
    MAX_SPANS,
    AttemptStatus,
    EnqueueRolloutRequest,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    TaskInput,
)
from perdure.spans.records import Span

PREFIX = "/v1/agl"
"""Path prefix of the protocol."""
MAX_CALLS = 1000
"""Maximum callers that share a request."""
MAX_WAIT = 60.0
"""Maximum seconds of a wait; longer waits repeat the request."""

Metadata = dict[str, Any]
NamedResourcesBody = dict[str, Any]
SpansBody = list[Span]


class StartRollout(msgspec.Struct, kw_only=True):
    """A rollout that starts at once."""

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: Metadata | None = None
    worker_id: str | None = None


class EnqueueRollouts(msgspec.Struct, kw_only=True):
    """Rollouts to enqueue in order."""

    rollouts: list[EnqueueRolloutRequest]


class DequeueRollouts(msgspec.Struct, kw_only=True):
    """A claim of a worker."""

    limit: int = 1
    worker_id: str | None = None
    queue: str = "default"


class DequeueCall(DequeueRollouts, kw_only=True):
    """A claim of one of several callers."""

    idempotency_key: str


class DequeueCalls(msgspec.Struct, kw_only=True):
    claims: Annotated[list[DequeueCall], Meta(max_length=MAX_CALLS)]


class StartAttempt(msgspec.Struct, kw_only=True):
    worker_id: str | None = None


class UpdateRollout(msgspec.Struct, kw_only=True):
    """A change; an absent field keeps its value, and null is a value."""

    input: TaskInput | UnsetType = UNSET
    mode: RolloutMode | UnsetType | None = UNSET
    resources_id: str | UnsetType | None = UNSET
    status: RolloutStatus | UnsetType | None = UNSET
    config: RolloutConfig | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class UpdateAttempt(msgspec.Struct, kw_only=True):
    """A change; no field may be null."""

    status: AttemptStatus | UnsetType | None = UNSET
    worker_id: str | UnsetType | None = UNSET
    last_heartbeat_time: float | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class UpdateAttemptCall(UpdateAttempt, kw_only=True):
    """A change by one of several callers. It needs the attempt's id, because reports may be repeated."""

    rollout_id: str
    attempt_id: str


class Reports(msgspec.Struct, kw_only=True):
    reports: Annotated[list[UpdateAttemptCall], Meta(max_length=MAX_CALLS)]


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


def _search(title: str, method: Callable[..., Any], *without: str) -> Any:
    """Build the search type from the parameters of a contract method; sequences become lists."""
    hints = get_type_hints(method)
    fields: list[Any] = []
    for parameter in list(signature(method).parameters.values())[1:]:
        if parameter.name not in without:
            kind = _as_list(hints[parameter.name])
            required = parameter.default is Parameter.empty
            fields.append((parameter.name, kind) if required else (parameter.name, kind, parameter.default))
    return msgspec.defstruct(title, fields, kw_only=True, module=__name__)


def _as_list(hint: Any) -> Any:
    """Return `list[T] | None` for `Sequence[T] | None`."""
    for part in get_args(hint):
        if get_origin(part) is Sequence:
            return list[get_args(part)[0]] | None  # type: ignore[misc]
    return hint


RolloutSearch = _search("RolloutSearch", LightningStore.query_rollouts, "status", "rollout_ids")
AttemptSearch = _search("AttemptSearch", LightningStore.query_attempts, "rollout_id")
ResourcesSearch = _search("ResourcesSearch", LightningStore.query_resources)
SpanSearch = _search("SpanSearch", LightningStore.query_spans)
WorkerSearch = _search("WorkerSearch", LightningStore.query_workers)


# --- answers that are not records ---------------------------------------------------------------------------


class LightningHealth(msgspec.Struct, kw_only=True):
    status: str = "ok"


class SequenceId(msgspec.Struct, kw_only=True):
    sequence_id: int


class SequenceIds(msgspec.Struct, kw_only=True):
    sequence_ids: list[int]
