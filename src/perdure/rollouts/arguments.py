"""What callers of the contract pass: checked, and turned into what the room takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import UNSET as KEEP

from perdure.kernel.codec import check_text, encode_json
from perdure.kernel.errors import BadQuery, InvalidInput
from perdure.kernel.storage.filters import check_page
from perdure.kernel.storage.port import Row
from perdure.rollouts import encoding
from perdure.rollouts.operations.queries import Page, Query
from perdure.rollouts.operations.report import AttemptReport, RolloutChange
from perdure.rollouts.records import ATTEMPT_STATUSES, ROLLOUT_STATUSES, UNSET, PaginatedResult

T = TypeVar("T")


def query(
    conditions: Iterable[Any], logic: Any, sort_by: Any, sort_order: Any, limit: int, offset: int
) -> Query:
    check_page(limit, offset)
    chosen = tuple(conditions)
    for condition in chosen:
        if condition.test != "within":
            check_text(condition.value, condition.field)
    return Query(chosen, logic, sort_by, sort_order, limit, offset)


def result(page: Page, decode: Callable[[Row], T], limit: int, offset: int) -> PaginatedResult[T]:
    rows: Sequence[Row] = page[0]
    return PaginatedResult(items=[decode(row) for row in rows], limit=limit, offset=offset, total=page[1])


def member(value: Any, members: Sequence[str], what: str) -> str:
    if value not in members:
        raise InvalidInput(f"{what} must be one of {', '.join(members)}, not {value!r}")
    return str(value)


def members(values: Sequence[Any] | None, members: Sequence[str], what: str) -> list[str] | None:
    if values is None:
        return None
    if isinstance(values, str):
        raise BadQuery(f"{what} must be a list, not a string")
    return [member(value, members, what) for value in values]


def texts(values: Sequence[str] | None, what: str) -> list[str] | None:
    if values is None:
        return None
    if isinstance(values, str):
        raise BadQuery(f"{what} must be a list, not a string")
    return [check_text(value, what) for value in values]


def key(idempotency_key: Any) -> str | None:
    """An idempotency key; an empty one is none."""
    return encoding.text_or_none(idempotency_key, "idempotency_key") or None


def rollout_change(
    rollout_id: Any, input: Any, mode: Any, resources_id: Any, status: Any, config: Any, metadata: Any
) -> RolloutChange:
    if config is None or status is None:
        raise InvalidInput("status and config cannot be None")
    return RolloutChange(
        rollout_id=check_text(rollout_id, "rollout_id"),
        status=KEEP if status is UNSET else member(status, ROLLOUT_STATUSES, "status"),
        mode=KEEP if mode is UNSET else encoding.check_mode(mode),
        resources_id=KEEP if resources_id is UNSET else encoding.text_or_none(resources_id, "resources_id"),
        config=KEEP if config is UNSET else encoding.encode_config(config),
        metadata=KEEP if metadata is UNSET else encoding.encode_metadata(metadata),
        input=KEEP if input is UNSET else encode_json(input, what="input"),
    )


def attempt_report(
    rollout_id: Any, attempt_id: Any, status: Any, worker_id: Any, last_heartbeat_time: Any, metadata: Any
) -> AttemptReport:
    return AttemptReport(
        rollout_id=check_text(rollout_id, "rollout_id"),
        attempt_id=check_text(attempt_id, "attempt_id"),
        status=KEEP if status is UNSET else member(status, ATTEMPT_STATUSES, "status"),
        worker_id=KEEP if worker_id is UNSET else encoding.text_or_none(worker_id, "worker_id"),
        last_heartbeat_time=KEEP if last_heartbeat_time is UNSET else _time_or_none(last_heartbeat_time),
        metadata=KEEP if metadata is UNSET else _body_or_none(metadata),
    )


def _time_or_none(value: Any) -> int | None:
    return None if value is None else encoding.micros(value, "last_heartbeat_time")


def _body_or_none(value: Any) -> str | None:
    return None if value is None else encoding.encode_metadata(value, "metadata")


def check_timeout(timeout: Any) -> None:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and (not number or timeout != timeout):
        raise InvalidInput(f"timeout must be a number of seconds, not {timeout!r}")
