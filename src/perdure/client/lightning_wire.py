"""What clients of the Agent-lightning protocol send: bodies, and the same fields in query strings."""

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
"""Where the protocol is spoken."""
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


class DequeueCall(DequeueRollouts, kw_only=True):
    """What one of many callers takes."""

    idempotency_key: str


class DequeueCalls(msgspec.Struct, kw_only=True):
    claims: Annotated[list[DequeueCall], Meta(max_length=MAX_CALLS)]


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


class UpdateAttemptCall(UpdateAttempt, kw_only=True):
    """What one of many callers sets; the id of the attempt is its own, since reports may be repeated."""

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
    """A search by the arguments of a method of the contract; lists travel as lists."""
    hints = get_type_hints(method)
    fields: list[Any] = []
    for each in list(signature(method).parameters.values())[1:]:
        if each.name not in without:
            kind = _as_list(hints[each.name])
            required = each.default is Parameter.empty
            fields.append((each.name, kind) if required else (each.name, kind, each.default))
    return msgspec.defstruct(title, fields, kw_only=True, module=__name__)


def _as_list(hint: Any) -> Any:
    """`Sequence[T] | None` as `list[T] | None`."""
    for part in get_args(hint):
        if get_origin(part) is Sequence:
            return list[get_args(part)[0]] | None  # type: ignore[misc]
    return hint


RolloutSearch = _search("RolloutSearch", LightningStore.query_rollouts, "status", "rollout_ids")
AttemptSearch = _search("AttemptSearch", LightningStore.query_attempts, "rollout_id")
ResourcesSearch = _search("ResourcesSearch", LightningStore.query_resources)
SpanSearch = _search("SpanSearch", LightningStore.query_spans)
WorkerSearch = _search("WorkerSearch", LightningStore.query_workers)


# --- answers that are no records ----------------------------------------------------------------------------


class LightningHealth(msgspec.Struct, kw_only=True):
    status: str = "ok"


class SequenceId(msgspec.Struct, kw_only=True):
    sequence_id: int


class SequenceIds(msgspec.Struct, kw_only=True):
    sequence_ids: list[int]
