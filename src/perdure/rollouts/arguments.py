"""What callers of the contract pass: checked, and turned into what the room takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import UNSET as KEEP

from perdure.kernel.codec import check_text
from perdure.kernel.errors import BadQuery, InvalidInput
from perdure.kernel.storage.filters import check_page
from perdure.kernel.storage.port import Row
from perdure.rollouts import encoding
from perdure.rollouts.operations.queries import Page, Query
from perdure.rollouts.records import UNSET, PaginatedResult

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


def time_or_keep(value: Any) -> Any:
    if value is UNSET:
        return KEEP
    return None if value is None else encoding.micros(value, "last_heartbeat_time")


def body_or_none(value: Any, what: str) -> str | None:
    return None if value is None else encoding.encode_metadata(value, what)


def check_timeout(timeout: Any) -> None:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and (not number or timeout != timeout):
        raise InvalidInput(f"timeout must be a number of seconds, not {timeout!r}")
