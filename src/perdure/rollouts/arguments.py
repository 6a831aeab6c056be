"""Checks the arguments of callers, and converts them for the operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import UNSET

from perdure.kernel.checks import (
    check_choice,
    check_choices,
    check_query_page,
    check_text,
    check_texts,
    optional_text,
)
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.pages import PageRequest
from perdure.kernel.storage.filters import FilterCondition, Sorting
from perdure.rollouts import encoding
from perdure.rollouts.operations.queries import Page, Query
from perdure.rollouts.operations.report import AttemptReport, RolloutChange
from perdure.rollouts.records import ATTEMPT_STATUSES, ROLLOUT_STATUSES, AttemptUpdate, PaginatedResult

T = TypeVar("T")
V = TypeVar("V")


def query(
    conditions: Iterable[Any],
    logic: Any,
    sort_by: Any,
    sort_order: Any,
    limit: int,
    offset: int,
    *,
    cursor: str | None = None,
    sorting: Sorting | None = None,
    total: bool = True,
) -> Query:
    """Build the query of a page of a list; with `sorting` it has cursors."""
    if sorting is None:
        check_query_page(limit, offset)
        keyset, place = None, None
    else:
        keyset = sorting.order(sort_by, sort_order).keyset(sorting.what)
        place = keyset.open_page(limit, offset, cursor).place
    chosen = tuple(conditions)
    for condition in chosen:
        if condition.test != "within":
            check_text(condition.value, condition.field)
    return Query(chosen, logic, sort_by, sort_order, limit, offset, place, keyset, total)


def within(values: Any, choices: Sequence[str], what: str) -> list[str] | None:
    """Return the values that a filter allows, or None for any."""
    return None if values is None else check_choices(values, choices, what)


def contract_query(terms: Mapping[str, Any]) -> Query:
    """Parse the arguments of a `query_` method of the contract: `x_in`, `x_contains` and `x` filter `x`."""
    left = dict(terms)
    page = (left.pop("sort_by"), left.pop("sort_order"), left.pop("limit"), left.pop("offset"))
    logic = left.pop("filter_logic", "and")
    return query((_condition(name, value) for name, value in left.items() if value is not None), logic, *page)


def _condition(name: str, value: Any) -> FilterCondition:
    field = name.removesuffix("_in").removesuffix("_contains")
    if name.endswith("_contains"):
        return FilterCondition(field, "contains", value)
    if name.endswith("_in"):
        return FilterCondition(field, "within", check_texts(value, name))
    return FilterCondition(field, "exact", value)


def result(page: Page[V], decode: Callable[[V], T], query: Query) -> PaginatedResult[T]:
    rows, total = page
    return build_page([decode(row) for row in rows], rows, total, query)


def build_page(
    items: Sequence[T], rows: Sequence[Any], total: int | None, query: Query
) -> PaginatedResult[T]:
    """Build a page of the items that rows were decoded to."""
    if query.keyset is None:
        return PaginatedResult(items=items, limit=query.limit, offset=query.offset, total=total)
    return PageRequest(query.keyset, query.limit, query.offset, query.place).build_page(rows, items, total)


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
        last_heartbeat_time=last_heartbeat_time
        if last_heartbeat_time is UNSET or last_heartbeat_time is None
        else encoding.micros(last_heartbeat_time, "last_heartbeat_time"),
        metadata=metadata
        if metadata is UNSET or metadata is None
        else encoding.encode_metadata(metadata, "metadata"),
    )


def build_report(update: Any) -> AttemptReport:
    if type(update) is not AttemptUpdate:
        update = AttemptUpdate.model_validate(update)
    return attempt_report(
        update.rollout_id,
        update.attempt_id,
        update.status,
        update.worker_id,
        update.last_heartbeat_time,
        update.metadata,
    )
