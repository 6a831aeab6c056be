"""Sorting and paging, equal for all queries: the tables and checks that the query modules share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import product
from typing import Any

from perdure import PaginatedResult

__all__ = ["PAGES", "check_page", "check_pages_join", "check_sorted"]

Query = Callable[..., Awaitable[PaginatedResult[Any]]]

ORDERS = ["asc", "desc"]
PAGES = [(-1, 0), (-1, 2), (0, 0), (1, 0), (2, 1), (3, 3), (100, 0), (2, 4), (5, 5), (-1, 5), (3, 50)]
"""(limit, offset) over five items."""


def sort_value(item: Any, field: str) -> Any:
    """Return the contract's sort key: a missing time is last, other missing values are empty or zero."""
    value = getattr(item, field)
    if value is not None:
        return value
    if field.endswith("_time"):
        return float("inf")
    return 0 if field in ("sequence_id", "version") else ""


async def check_sorted(query: Query, items: Sequence[Any], fields: Iterable[str]) -> None:
    """Check that the query returns all items, ordered by each of the fields in both orders."""
    for field, order in product(fields, ORDERS):
        result = await query(sort_by=field, sort_order=order)
        values = [sort_value(item, field) for item in result]
        expected = sorted((sort_value(item, field) for item in items), reverse=order == "desc")
        assert values == expected, (field, order)
        assert len(set(values)) > 1, f"the data says nothing about {field}"
        assert result.total == len(items), (field, order)


async def check_page(query: Query, items: Sequence[Any], limit: int, offset: int, **options: Any) -> None:
    """Check that the page is the right slice, with its parameters and the total."""
    result = await query(limit=limit, offset=offset, **options)
    end = len(items) if limit == -1 else offset + limit
    assert list(result) == list(items[offset:end]), (limit, offset)
    assert (result.limit, result.offset, result.total) == (limit, offset, len(items))


async def check_pages_join(query: Query, fields: Iterable[str | None], size: int = 2) -> None:
    """Check that consecutive pages contain every item once, in order."""
    for field, order in product(fields, ORDERS):
        options = {"sort_order": order} if field is None else {"sort_by": field, "sort_order": order}
        whole = await query(**options)
        paged: list[Any] = []
        for offset in range(0, whole.counted, size):
            paged.extend(await query(limit=size, offset=offset, **options))
        assert paged == list(whole), (field, order)
