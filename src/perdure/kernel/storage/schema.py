"""Tables, declared once. A domain declares its own; the drivers create and extend them on open.

The upgrade is additive: tables, nullable (or defaulted) columns and indexes are added; nothing is dropped,
narrowed or renamed. So a release can open what an older one made, and the older one still works on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

ColumnType = Literal["int", "text", "blob"]

SCHEMA_GENERATION = 1
"""Raised only by a change that older releases cannot live with."""

LARGE_TABLE_ROWS = 100_000
"""From this size on a new index is built in the background."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    null: bool = False
    default: int | None = None


@dataclass(frozen=True, slots=True)
class Index:
    name: str
    columns: tuple[str, ...]
    where: str | None = None
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """A question that many transactions ask first: has the time in `column` come for any row of `table`?

    PostgreSQL answers it while the transaction begins.
    """

    table: str
    column: str

    @property
    def sql(self) -> str:
        words = (
            "SELECT 1 FROM",
            self.table,
            "WHERE",
            self.column,
            "<= :now ORDER BY",
            self.column,
            "LIMIT 1",
        )
        return " ".join(words)


@dataclass(frozen=True, eq=False)
class Table:
    """A table with its key and indexes. `hot` ones are vacuumed eagerly on PostgreSQL."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()
    hot: bool = False
    probes: tuple[Probe, ...] = ()
    deadlines: tuple[str, ...] = ()
    """The deadline of a row, null where it has none, and the times that it counts from."""
    _by_name: dict[str, Column] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {column.name: column for column in self.columns})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        return self._by_name[name]


META = Table("perdure_meta", (Column("name", "text"), Column("value", "text")), key=("name",))


def integer(name: str, *, null: bool = False, default: int | None = None) -> Column:
    return Column(name, "int", null, default)


def text(name: str, *, null: bool = False) -> Column:
    return Column(name, "text", null)


def blob(name: str, *, null: bool = False) -> Column:
    return Column(name, "blob", null)


class Schema:
    """All the tables of one database, by name."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self.tables: dict[str, Table] = {META.name: META}
        for table in tables:
            if table.name in self.tables:
                raise AssertionError(f"table {table.name} is declared twice")
            self.tables[table.name] = table

    @property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(probe for table in self.tables.values() for probe in table.probes)

    def indexes(self) -> Iterable[tuple[Table, Index]]:
        return [(table, index) for table in self.tables.values() for index in table.indexes]
