"""What callers of the contract pass: checked, and turned into what the room takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import UNSET

from perdure.kernel.checks import check_choice, check_query_page, check_text, optional_text
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.port import Row
from perdure.rollouts import encoding
from perdure.rollouts.operations.queries import Page, Query
from perdure.rollouts.operations.report import AttemptReport, RolloutChange
from perdure.rollouts.records import ATTEMPT_STATUSES, ROLLOUT_STATUSES, PaginatedResult

T = TypeVar("T")


def query(
    conditions: Iterable[Any], logic: Any, sort_by: Any, sort_order: Any, limit: int, offset: int
) -> Query:
    check_query_page(limit, offset)
    chosen = tuple(conditions)
    for condition in chosen:
        if condition.test != "within":
            check_text(condition.value, condition.field)
    return Query(chosen, logic, sort_by, sort_order, limit, offset)


def result(page: Page, decode: Callable[[Row], T], limit: int, offset: int) -> PaginatedResult[T]:
    rows: Sequence[Row] = page[0]
    return PaginatedResult(items=[decode(row) for row in rows], limit=limit, offset=offset, total=page[1])


def key(idempotency_key: Any) -> str | None:
    """An idempotency key; an empty one is none."""
    return optional_text(idempotency_key, "idempotency_key") or None


def rollout_change(
    rollout_id: Any, input: Any, mode: Any, resources_id: Any, status: Any, config: Any, metadata: Any
) -> RolloutChange:
    if config is None or status is None:
        raise InvalidInput("status and config cannot be None")
    return RolloutChange(
        rollout_id=check_text(rollout_id, "rollout_id"),
        status=UNSET if status is UNSET else check_choice(status, ROLLOUT_STATUSES, "status"),
        mode=UNSET if mode is UNSET else encoding.check_mode(mode),
        resources_id=UNSET if resources_id is UNSET else optional_text(resources_id, "resources_id"),
        config=UNSET if config is UNSET else encoding.encode_config(config),
        metadata=UNSET if metadata is UNSET else encoding.encode_metadata(metadata),
        input=UNSET if input is UNSET else encode_json(input, what="input"),
    )


def attempt_report(
    rollout_id: Any, attempt_id: Any, status: Any, worker_id: Any, last_heartbeat_time: Any, metadata: Any
) -> AttemptReport:
    return AttemptReport(
        rollout_id=check_text(rollout_id, "rollout_id"),
        attempt_id=check_text(attempt_id, "attempt_id"),
        status=UNSET if status is UNSET else check_choice(status, ATTEMPT_STATUSES, "status"),
        worker_id=UNSET if worker_id is UNSET else optional_text(worker_id, "worker_id"),
        last_heartbeat_time=UNSET if last_heartbeat_time is UNSET else _time_or_none(last_heartbeat_time),
        metadata=UNSET if metadata is UNSET else _body_or_none(metadata),
    )


def _time_or_none(value: Any) -> int | None:
    return None if value is None else encoding.micros(value, "last_heartbeat_time")


def _body_or_none(value: Any) -> str | None:
    return None if value is None else encoding.encode_metadata(value, "metadata")
