"""The only dynamic SQL: filters, sort orders, cursors and pages over fields that a domain allows.

Identifiers come only from the domain's fields; values are always bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from perdure.kernel.checks import MAX_ROWS
from perdure.kernel.cursors import Place
from perdure.kernel.errors import BadQuery
from perdure.kernel.pages import Keyset
from perdure.kernel.storage.dialect import Statement, statement
from perdure.kernel.storage.rows import R_co, Row

if TYPE_CHECKING:
    from perdure.kernel.storage.port import Tx

Kind = Literal["time", "text", "int"]
Test = Literal["exact", "within", "contains"]


@dataclass(frozen=True, slots=True)
class ListField:
    """A field of a listing: its column, and the order of missing values (last for times, otherwise first)."""

    column: str
    kind: Kind
    null: bool = False


@dataclass(frozen=True, slots=True)
class FilterCondition:
    field: str
    test: Test
    value: Any


@dataclass(frozen=True, slots=True)
class Clause:
    """A piece of SQL and the values bound in it."""

    sql: str
    values: Mapping[str, Any]


def given(*conditions: tuple[str, Test, Any]) -> list[FilterCondition]:
    """Return the conditions whose value is not None."""
    return [FilterCondition(field, test, value) for field, test, value in conditions if value is not None]


def where(fields: Mapping[str, ListField], conditions: Sequence[FilterCondition], logic: str) -> Clause:
    """Join the conditions by `logic`. Without conditions every row matches."""
    if logic not in ("and", "or"):
        raise BadQuery(f"filter_logic is {logic!r}; it must be 'and' or 'or'")
    parts: list[str] = []
    values: dict[str, Any] = {}
    for number, condition in enumerate(conditions):
        name = "f" + str(number)
        if condition.field not in fields:
            raise BadQuery(f"there is no field {condition.field!r} to filter by")
        parts.append(_build_test(fields[condition.field].column, condition.test, name))
        values[name] = condition.value
    if not parts:
        return Clause("TRUE", {})
    return Clause("(" + (" " + logic.upper() + " ").join(parts) + ")", values)


def _build_test(column: str, test: Test, name: str) -> str:
    if test == "exact":
        return column + " = :" + name
    if test == "within":
        return column + " {among:" + name + "}"
    return "{has:" + column + "," + name + "}"


@dataclass(frozen=True, slots=True)
class SortKey:
    """A sort column, and the order of its missing values if it may have any."""

    column: str
    kind: Kind
    descending: bool = False
    nulls: Literal["first", "last"] | None = None

    @property
    def sql(self) -> str:
        nulls = "" if self.nulls is None else " NULLS " + self.nulls.upper()
        return self.column + (" DESC" if self.descending else "") + nulls

    @property
    def type(self) -> Any:
        plain = str if self.kind == "text" else int
        return plain if self.nulls is None else plain | None

    def equal(self, name: str, value: Any) -> str:
        """Return the SQL for rows with an equal value."""
        return self.column + (" IS NULL" if value is None else " = :" + name)

    def beyond(self, name: str, value: Any) -> str:
        """Return the SQL for rows with a later value."""
        if value is None:
            return "FALSE" if self.nulls == "last" else self.column + " IS NOT NULL"
        after = self.column + (" < :" if self.descending else " > :") + name
        return "(" + after + " OR " + self.column + " IS NULL)" if self.nulls == "last" else after


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The sort columns of a list. Together they are unique for each row."""

    keys: tuple[SortKey, ...]

    @property
    def sql(self) -> str:
        return " ORDER BY " + ", ".join(key.sql for key in self.keys)

    def keyset(self, what: str) -> Keyset[Any, Place | None]:
        """Return the key of a list in this order, whose cursors also name the order."""
        names = [key.column.rpartition(".")[2] for key in self.keys]
        return Keyset(
            what + self.sql,
            None,
            lambda row: tuple(getattr(row, name) for name in names),
            [key.type for key in self.keys],
        )

    def after(self, place: Place | None) -> Clause:
        """Return the SQL for rows after a position; without one, for all rows."""
        if place is None:
            return Clause("TRUE", {})
        names = ["c" + str(number) for number in range(len(place))]
        values = {name: value for name, value in zip(names, place, strict=True) if value is not None}
        first, *others = self.keys
        if all(key.descending == first.descending and key.nulls is None for key in self.keys):
            sign = " < " if first.descending else " > "
            if not others:
                return Clause(first.column + sign + ":c0", values)
            columns = "(" + ", ".join(key.column for key in self.keys) + ")"
            bound = "(" + ", ".join(":" + name for name in names) + ")"
            return Clause(self._begin(first) + columns + sign + bound, values)
        clause = ""
        for key, name, value in reversed(list(zip(self.keys, names, place, strict=True))):
            beyond = key.beyond(name, value)
            clause = (
                "(" + beyond + " OR " + key.equal(name, value) + " AND " + clause + ")" if clause else beyond
            )
        return Clause(clause if first.nulls else self._begin(first) + clause, values)

    @staticmethod
    def _begin(first: SortKey) -> str:
        """Return the start of an index range with the rows in this order."""
        return first.column + (" <= :c0" if first.descending else " >= :c0") + " AND "


def order_by(
    fields: Mapping[str, ListField], sort_by: str | None, sort_order: str, ties: SortOrder
) -> SortOrder:
    """Return the order by a field; equal rows keep the order of `ties` in both directions."""
    if sort_order not in ("asc", "desc"):
        raise BadQuery(f"sort_order is {sort_order!r}; it must be 'asc' or 'desc'")
    if sort_by is None:
        return ties
    if not isinstance(sort_by, str) or sort_by not in fields:
        raise BadQuery(f"Invalid sort_by: {sort_by}, allowed fields are: {', '.join(sorted(fields))}")
    field = fields[sort_by]
    nulls: Literal["first", "last"] | None = None
    if field.null:
        nulls = "last" if (field.kind == "time") == (sort_order == "asc") else "first"
    first = SortKey(field.column, field.kind, sort_order == "desc", nulls)
    return SortOrder((first, *(key for key in ties.keys if key.column != first.column)))


@dataclass(frozen=True, slots=True)
class Sorting:
    """Sortable fields of a list, and the order of equal rows. `what` names the list."""

    what: str
    fields: Mapping[str, ListField]
    ties: SortOrder

    def order(self, sort_by: str | None, sort_order: str) -> SortOrder:
        return order_by(self.fields, sort_by, sort_order, self.ties)


class Listing(Generic[R_co]):
    """A list query: the columns, and the table with its fixed conditions.

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
        self, clause: Clause, order: SortOrder, limit: int, offset: int, place: Place | None = None
    ) -> tuple[Statement[R_co], Mapping[str, Any]]:
        """Build the statement of a page of the rows that match a clause, after a position."""
        part = _page(limit, offset)
        after = order.after(place)
        wanted = clause.sql if place is None else clause.sql + " AND " + after.sql
        text = "SELECT " + self.view + " FROM " + self.source + " AND " + wanted + order.sql + part.sql
        return _build_statement(text, self.row, self.name), {**clause.values, **after.values, **part.values}

    def count(self, clause: Clause) -> Statement[int]:
        """Build the statement that counts all rows."""
        return _build_statement("SELECT count(*) FROM " + self.source + " AND " + clause.sql, int, self.name)

    async def total(
        self,
        tx: Tx,
        clause: Clause,
        page_rows: int,
        *,
        limit: int,
        offset: int,
        place: Place | None,
        asked: bool,
        **bound: Any,
    ) -> int | None:
        """Return the number of all rows if the page shows it or it is `asked` for, otherwise None."""
        if place is None and limit and (0 < page_rows < limit or not (page_rows or offset)):
            return offset + page_rows
        if not (asked or limit == 0):
            return None
        return await tx.one(self.count(clause), **clause.values, **bound) or 0

    def heads(
        self,
        column: str,
        values: Sequence[str],
        order: SortOrder,
        limit: int,
        offset: int,
        place: Place | None = None,
        clause: Clause | None = None,
    ) -> tuple[Statement[R_co], Mapping[str, Any]]:
        """Build a page from the first rows after a position for each value of an indexed column."""
        after = order.after(place)
        held = Clause("", {}) if clause is None else Clause(" AND " + clause.sql, clause.values)
        branch = "SELECT * FROM (SELECT " + self.view + " FROM " + self.source + " AND " + column + " = :h"
        rest = held.sql + ("" if place is None else " AND " + after.sql) + order.sql + " LIMIT :top) AS b"
        branches = [branch + str(number) + rest for number in range(len(values))]
        text = (
            "SELECT * FROM ("
            + " UNION ALL ".join(branches)
            + ") AS heads"
            + order.sql
            + " LIMIT :limit OFFSET :offset"
        )
        bound: dict[str, Any] = {"h" + str(number): value for number, value in enumerate(values)}
        bound |= {"top": limit + offset, "limit": limit, "offset": offset, **after.values, **held.values}
        return _build_statement(text, self.row, self.name), bound


def _build_statement(text: str, row: type[Any] | None, name: str) -> Statement[Any]:
    built: Statement[Any] = statement(text) if row is None else statement(text, row)
    if name:
        built.take_name(name)
    return built


def _page(limit: int, offset: int) -> Clause:
    """Return LIMIT and OFFSET with bound values; -1 means everything."""
    if limit == -1 and offset == 0:
        return Clause("", {})
    return Clause(
        " LIMIT :limit OFFSET :offset", {"limit": MAX_ROWS if limit == -1 else limit, "offset": offset}
    )
