"""Conversion between records and rows: checks and encodes arguments, decodes rows to records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec

from perdure.kernel.checks import check_text, optional_choice, optional_text
from perdure.kernel.clock import to_micros, to_seconds, to_seconds_or_none
from perdure.kernel.codec import (
    decode_json,
    encode_decoded,
    encode_json,
)
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.labels import check_size
from perdure.kernel.storage.rows import stored
from perdure.rollouts.model import DEFAULT_QUEUE, decode_limits
from perdure.rollouts.operations.enqueue import NewRollout
from perdure.rollouts.records import (
    ROLLOUT_MODES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    HeldAttempt,
    Rollout,
    RolloutAnswer,
    RolloutConfig,
    UsualRequest,
    Worker,
    WorkerDetails,
    WorkerStatus,
)
from perdure.rollouts.resources import NamedResources, ResourcesUpdate, validate_resources
from perdure.rollouts.rows import (
    AttemptRecordRow,
    ClaimedRollout,
    HeldAttemptRow,
    ResourcesRow,
    RolloutRecordRow,
    WorkerRow,
)

_config_from = msgspec.json.Decoder(RolloutConfig).decode


# --- arguments to rows ------------------------------------------------------------------------------------


def encode_config(config: Any) -> str:
    if config is None:
        return _default_config()
    if type(config) is not RolloutConfig:
        config = RolloutConfig.model_validate(config)
    return _with_limits(encode_json(config, what="config"))


@lru_cache(maxsize=1)
def _default_config() -> str:
    return _with_limits(encode_json(RolloutConfig(), what="config"))


def _with_limits(config: str) -> str:
    """Decode the limits of a config before a transaction needs them; return the config."""
    decode_limits(config)
    return config


def encode_metadata(metadata: Any, what: str = "metadata") -> str:
    if not metadata and metadata is not None and isinstance(metadata, Mapping):
        return "{}"
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidInput(f"{what} must be a dictionary, not {type(metadata).__name__}")
    text = encode_json(metadata, what=what)
    check_size(metadata or {}, text, what)
    return text


def check_key(idempotency_key: Any) -> str | None:
    """Check an idempotency key; an empty key counts as no key."""
    return optional_text(idempotency_key, "idempotency_key") or None


def check_mode(mode: Any) -> str | None:
    return optional_choice(mode, ROLLOUT_MODES, "mode")


def new_rollout(
    input: Any,
    mode: Any = None,
    resources_id: Any = None,
    config: Any = None,
    metadata: Any = None,
    *,
    queue: Any = DEFAULT_QUEUE,
    priority: Any = 0,
    not_before: Any = None,
    idempotency_key: Any = None,
    worker_id: Any = None,
) -> NewRollout:
    """Build a new rollout: check all fields and encode the bodies."""
    if type(priority) is not int or not -(2**31) <= priority < 2**31:
        raise InvalidInput(f"priority must be a whole number of 32 bits, not {priority!r}")
    return NewRollout(
        input=encode_json(input, what="input"),
        config=encode_config(config),
        metadata="{}" if metadata is None else encode_metadata(metadata),
        mode=check_mode(mode),
        resources_id=optional_text(resources_id, "resources_id"),
        queue=queue if queue is DEFAULT_QUEUE else check_text(queue, "queue"),
        priority=priority,
        not_before=None if not_before is None else micros(not_before, "not_before"),
        idempotency_key=check_key(idempotency_key),
        worker_id=optional_text(worker_id, "worker_id"),
    )


def from_request(request: Any, key: str | None = None) -> NewRollout:
    """Build a new rollout from a request; `key` is used if the request has no idempotency key."""
    if type(request) is UsualRequest:
        return _from_usual(request, key)
    if type(request) is not EnqueueRolloutRequest:
        request = EnqueueRolloutRequest.model_validate(request)
    return new_rollout(
        request.input,
        request.mode,
        request.resources_id,
        request.config,
        request.metadata,
        queue=request.queue,
        priority=request.priority,
        not_before=request.not_before,
        idempotency_key=request.idempotency_key or key,
    )


def _from_usual(request: UsualRequest, key: str | None) -> NewRollout:
    config, metadata, not_before = request.config, request.metadata, request.not_before
    stored = encode_decoded(metadata, what="metadata") if metadata else "{}"
    if metadata:
        check_size(metadata, stored, "metadata")
    return NewRollout(
        input=encode_decoded(request.input, what="input"),
        config=_default_config() if config is None else _with_limits(encode_decoded(config, what="config")),
        metadata=stored,
        mode=request.mode,
        resources_id=request.resources_id,
        queue=request.queue,
        priority=request.priority,
        not_before=None if not_before is None else to_micros(not_before),
        idempotency_key=check_key(request.idempotency_key or key),
    )


def micros(seconds: Any, what: str) -> int:
    """Convert epoch seconds to whole microseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not abs(seconds) < 1e12:
        raise InvalidInput(f"{what} must be a time in epoch seconds, not {seconds!r}")
    return to_micros(seconds)


def encode_resources(resources: Any) -> str:
    return encode_json(validate_resources(resources), what="resources")


# --- rows to records --------------------------------------------------------------------------------------


@stored
def rollout_from(
    row: RolloutRecordRow, attempt: AttemptRecordRow | None = None, input: Any = msgspec.UNSET
) -> Rollout:
    """Convert a row to a rollout, with its attempt if given."""
    fields = {
        "rollout_id": row.id,
        "input": decode_json(row.input) if input is msgspec.UNSET else input,
        "start_time": to_seconds(row.start_time),
        "end_time": to_seconds_or_none(row.end_time),
        "mode": row.mode,
        "resources_id": row.resources_id,
        "status": row.status,
        "config": _config_from(row.config),
        "metadata": {} if row.metadata == "{}" else decode_json(row.metadata),
        "parent": msgspec.UNSET if row.parent is None else row.parent,
    }
    if attempt is None:
        return Rollout(**fields)
    return AttemptedRollout(**fields, attempt=attempt_from(attempt))


def answer_from(row: RolloutRecordRow) -> RolloutAnswer:
    """Convert a row to a rollout without an attempt that encodes like its record."""
    return RolloutAnswer(
        rollout_id=row.id,
        input=msgspec.Raw(row.input),
        start_time=to_seconds(row.start_time),
        end_time=to_seconds_or_none(row.end_time),
        mode=row.mode,
        resources_id=row.resources_id,
        status=row.status,
        # An earlier release may have stored a config with fewer fields.
        config=msgspec.Raw(row.config) if row.config == _default_config() else _config_from(row.config),
        metadata=msgspec.Raw(row.metadata),
        parent=msgspec.UNSET if row.parent is None else row.parent,
    )


def attempted_from(claimed: ClaimedRollout) -> AttemptedRollout:
    rollout = rollout_from(*claimed)
    assert isinstance(rollout, AttemptedRollout)
    return rollout


@stored
def attempt_from(row: AttemptRecordRow) -> Attempt:
    return Attempt(
        rollout_id=row.rollout_id,
        sequence_id=row.sequence_id,
        attempt_id=row.id,
        status=cast(AttemptStatus, row.status),
        start_time=to_seconds(row.start_time),
        end_time=to_seconds_or_none(row.end_time),
        worker_id=row.worker_id,
        last_heartbeat_time=to_seconds_or_none(row.last_heartbeat_time),
        metadata=decode_json(row.metadata),
    )


@stored
def worker_from(row: WorkerRow) -> Worker:
    return Worker(
        worker_id=row.id,
        status=cast(WorkerStatus, row.status),
        last_heartbeat_time=to_seconds_or_none(row.last_heartbeat_time),
        last_dequeue_time=to_seconds_or_none(row.last_dequeue_time),
        last_busy_time=to_seconds_or_none(row.last_busy_time),
        last_idle_time=to_seconds_or_none(row.last_idle_time),
        current_rollout_id=row.current_rollout_id,
        current_attempt_id=row.current_attempt_id,
        heartbeat_stats=decode_json(row.heartbeat_stats),
    )


def details_from(row: WorkerRow, held: Sequence[HeldAttemptRow], drained: Mapping[str, int]) -> WorkerDetails:
    """Convert a row to a worker. Select from `held` the attempts of this worker."""
    own = [
        HeldAttempt(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            kind=attempt.kind,
            start_time=to_seconds(attempt.start_time),
        )
        for attempt in held
        if attempt.worker_id == row.id
    ]
    worker = msgspec.structs.asdict(worker_from(row))
    return WorkerDetails(
        **worker,
        held=own,
        stopped_at=to_seconds_or_none(row.stopped_at),
        draining_since=to_seconds_or_none(drained.get(row.id)),
    )


@stored
def resources_from(row: ResourcesRow) -> ResourcesUpdate:
    resources: NamedResources = validate_resources(decode_json(row.body))
    return ResourcesUpdate(
        resources_id=row.id,
        version=row.version,
        create_time=to_seconds(row.create_time),
        update_time=to_seconds(row.update_time),
        resources=resources,
    )
