"""The only dynamic SQL: filters, sort orders and pages over fields that a domain allows.

Identifiers come from the domain's fields and nowhere else; values are always bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, overload

from perdure.kernel.checks import MAX_ROWS
from perdure.kernel.errors import BadQuery
from perdure.kernel.storage.dialect import Statement, statement
from perdure.kernel.storage.rows import R_co, Row

Kind = Literal["time", "text", "int"]
Test = Literal["exact", "within", "contains"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a listing: its column, and how a missing value sorts (a time last, all else first)."""

    column: str
    kind: Kind
    null: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    field: str
    test: Test
    value: Any


@dataclass(frozen=True, slots=True)
class Clause:
    """A piece of SQL and the values bound in it."""

    sql: str
    values: Mapping[str, Any]


def given(*conditions: tuple[str, Test, Any]) -> list[Condition]:
    """The conditions whose value is not None."""
    return [Condition(field, test, value) for field, test, value in conditions if value is not None]


def where(fields: Mapping[str, Field], conditions: Sequence[Condition], logic: str) -> Clause:
    """All conditions in one pool, joined by `logic`. An empty pool holds for every row."""
    if logic not in ("and", "or"):
        raise BadQuery(f"filter_logic is {logic!r}; it must be 'and' or 'or'")
    parts: list[str] = []
    values: dict[str, Any] = {}
    for number, condition in enumerate(conditions):
        name = "f" + str(number)
        if condition.field not in fields:
            raise BadQuery(f"there is no field {condition.field!r} to filter by")
        parts.append(_test(fields[condition.field].column, condition.test, name))
        values[name] = condition.value
    if not parts:
        return Clause("TRUE", {})
    return Clause("(" + (" " + logic.upper() + " ").join(parts) + ")", values)


def _test(column: str, test: Test, name: str) -> str:
    if test == "exact":
        return column + " = :" + name
    if test == "within":
        return column + " {among:" + name + "}"
    return "{has:" + column + "," + name + "}"


def order_by(fields: Mapping[str, Field], sort_by: str | None, sort_order: str, ties: str) -> str:
    """The ORDER BY clause; equal rows keep the order of `ties`, whichever way they are sorted."""
    if sort_order not in ("asc", "desc"):
        raise BadQuery(f"sort_order is {sort_order!r}; it must be 'asc' or 'desc'")
    if sort_by is None:
        return " ORDER BY " + ties
    if not isinstance(sort_by, str) or sort_by not in fields:
        raise BadQuery(f"Invalid sort_by: {sort_by}, allowed fields are: {', '.join(sorted(fields))}")
    field = fields[sort_by]
    nulls = ""
    if field.null:
        last = (field.kind == "time") == (sort_order == "asc")
        nulls = " NULLS LAST" if last else " NULLS FIRST"
    return " ORDER BY " + field.column + " " + sort_order.upper() + nulls + ", " + ties


class Listing(Generic[R_co]):
    """What a query lists: the columns to show, and the table with the conditions that always hold.

    With a row class, `{columns}` or `{columns:alias}` in the view is the list of its columns.
    """

    @overload
    def __init__(self: Listing[Row], view: str, source: str) -> None: ...
    @overload
    def __init__(self, view: str, source: str, row: type[R_co]) -> None: ...
    def __init__(self, view: str, source: str, row: type[Any] | None = None) -> None:
        self.view, self.source, self.row = view, source, row
        self.name = ""

    def take_name(self, name: str) -> None:
        self.name = name

    def page(
        self, clause: Clause, order: str, limit: int, offset: int
    ) -> tuple[Statement[R_co], Mapping[str, Any]]:
        part = _page(limit, offset)
        text = "SELECT " + self.view + " FROM " + self.source + " AND " + clause.sql + order + part.sql
        return _named(text, self.row, self.name), {**clause.values, **part.values}

    def count(self, clause: Clause) -> Statement[int]:
        """How many rows there are in all."""
        return _named("SELECT count(*) FROM " + self.source + " AND " + clause.sql, int, self.name)

    def heads(
        self, column: str, values: Sequence[str], order: str, limit: int, offset: int
    ) -> tuple[Statement[R_co], Mapping[str, Any]]:
        """A page out of the first rows for each value of a column, which an index has in order."""
        branch = "SELECT * FROM (SELECT " + self.view + " FROM " + self.source + " AND " + column + " = :h"
        branches = [branch + str(number) + order + " LIMIT :top) AS b" for number in range(len(values))]
        text = (
            "SELECT * FROM ("
            + " UNION ALL ".join(branches)
            + ") AS heads"
            + order
            + " LIMIT :limit OFFSET :offset"
        )
        bound: dict[str, Any] = {"h" + str(number): value for number, value in enumerate(values)}
        bound |= {"top": limit + offset, "limit": limit, "offset": offset}
        return _named(text, self.row, self.name), bound


def _named(text: str, row: type[Any] | None, name: str) -> Statement[Any]:
    made: Statement[Any] = statement(text) if row is None else statement(text, row)
    if name:
        made.take_name(name)
    return made


def _page(limit: int, offset: int) -> Clause:
    """LIMIT and OFFSET as bound values; -1 means everything."""
    if limit == -1 and offset == 0:
        return Clause("", {})
    return Clause(
        " LIMIT :limit OFFSET :offset", {"limit": MAX_ROWS if limit == -1 else limit, "offset": offset}
    )
