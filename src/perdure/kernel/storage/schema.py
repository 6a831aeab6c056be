"""Tables, declared once. A domain declares its own; the drivers create and extend them on open.

The upgrade is additive: tables, nullable (or defaulted) columns and indexes are added; nothing is dropped,
narrowed or renamed. So a release can open what an older one made, and the older one still works on it. A
foreign key comes with its table: SQLite cannot add one to a table that exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

ColumnType = Literal["int", "real", "text", "blob"]

SCHEMA_GENERATION = 1
"""Raised only by a change that older releases cannot live with."""

LARGE_TABLE_ROWS = 100_000
"""From this size on a new index is built in the background."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `real` is a float of 64 bits, never NaN, which SQLite stores as null."""

    name: str
    type: ColumnType
    null: bool = False
    default: int | float | str | None = None


@dataclass(frozen=True, slots=True)
class Index:
    name: str
    columns: tuple[str, ...]
    where: str | None = None
    unique: bool = False


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """The columns that name a row of another table by its key; a row with a null among them names none.

    A row that is referred to cannot be deleted; with `cascade`, the rows that refer to it go with it. Where
    the columns came after their table, it is not `enforced`: then it is only written down.
    """

    columns: tuple[str, ...]
    table: str
    cascade: bool = False
    enforced: bool = True


@dataclass(frozen=True, slots=True)
class FullText:
    """An index of the words in a text column: FTS5 with external content, or a tsvector with GIN.

    A row is in the index while it has a number in the column `place`, which is unique. The words of the
    column `tags` narrow a search. `fulltext` has its DDL and its queries.
    """

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class View:
    """A view for people who read the database with SQL, as each engine creates it.

    It is created when its name is free, after all tables. No statement of perdure reads it.
    """

    name: str
    sqlite: str
    postgres: str

    def create(self, engine: str) -> str:
        return "CREATE VIEW " + self.name + " AS " + (self.sqlite if engine == "sqlite" else self.postgres)


@dataclass(frozen=True, slots=True)
class Probe:
    """A question that many transactions ask first: has the time in `column` come for any row of `table`?

    Without a column: has the table any row? PostgreSQL answers it while the transaction begins.
    """

    table: str
    column: str | None = None

    @property
    def sql(self) -> str:
        if self.column is None:
            return "SELECT 1 FROM " + self.table + " LIMIT 1"
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
    in_key: bool = False
    """Whether SQLite stores its rows in the index of its key, not beside it: for small rows."""
    fill: int = 85
    """How many percent of a page of a `hot` table new rows take on PostgreSQL. A version that finds room on
    the page of the one before it, and changes nothing that is indexed, needs no entry in any index."""
    probes: tuple[Probe, ...] = ()
    deadlines: tuple[str, ...] = ()
    """The deadline of a row, null where it has none, and the times that it counts from."""
    foreign_keys: tuple[ForeignKey, ...] = ()
    """Small tables have them; on tables that every call writes to they would cost too much."""
    full_text: FullText | None = None
    views: tuple[View, ...] = ()
    filled_by: str | None = None
    """What is run when the table is created: it may have to count what an earlier release has stored."""
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


def real(name: str, *, null: bool = False, default: float | None = None) -> Column:
    return Column(name, "real", null, default)


def text(name: str, *, null: bool = False, default: str | None = None) -> Column:
    return Column(name, "text", null, default)


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
            for foreign_key in table.foreign_keys:
                self._check(table, foreign_key)

    def _check(self, table: Table, foreign_key: ForeignKey) -> None:
        """A foreign key names a table that is created before its own, and an index finds its rows."""
        what = f"the foreign key of {table.name} to {foreign_key.table}"
        target = self.tables.get(foreign_key.table)
        if target is None:
            raise AssertionError(f"{what}: that table must be declared before")
        own = [table.column(name).type for name in foreign_key.columns]
        if own != [target.column(name).type for name in target.key]:
            raise AssertionError(f"{what}: the columns must be those of its key, {', '.join(target.key)}")
        found = [table.key, *(index.columns for index in table.indexes)]
        if foreign_key.enforced and not any(
            columns[: len(foreign_key.columns)] == foreign_key.columns for columns in found
        ):
            raise AssertionError(f"{what}: no index begins with {', '.join(foreign_key.columns)}")

    @property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(probe for table in self.tables.values() for probe in table.probes)

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(view for table in self.tables.values() for view in table.views)

    def indexes(self) -> Iterable[tuple[Table, Index]]:
        return [(table, index) for table in self.tables.values() for index in table.indexes]
