"""Declarations of tables. A domain declares its own; the drivers create and extend them on open.

The upgrade is additive: tables, nullable (or defaulted) columns and indexes are added; nothing is dropped,
narrowed or renamed. A release can therefore open an older release's database, which the older release can
still use. A foreign key is created with its table, because SQLite cannot add one later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

ColumnType = Literal["int", "real", "text", "blob"]

SCHEMA_GENERATION = 1
"""Raised only by a change that older releases cannot work with."""

LARGE_TABLE_ROWS = 100_000
"""From this size on a new index is built in the background."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `real` is a 64-bit float, never NaN, which SQLite stores as null."""

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
    """Columns that refer to the key of another table's row; with a null among them they refer to none.

    A referenced row cannot be deleted; with `cascade`, its referring rows are deleted with it. If the columns
    were added after their table, the key is declared but not `enforced`.
    """

    columns: tuple[str, ...]
    table: str
    cascade: bool = False
    enforced: bool = True


@dataclass(frozen=True, slots=True)
class FullText:
    """An index of the words in a text column: FTS5 with external content, or a tsvector with GIN.

    A row is indexed while its unique column `place` has a number. The words of the column `tags` narrow a
    search. `fulltext` builds the DDL and the queries.
    """

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class View:
    """A view for people who read the database with SQL, with the text for each engine.

    Views are created after all tables if their names are free. No statement of perdure reads them.
    """

    name: str
    sqlite: str
    postgres: str

    def create(self, engine: str) -> str:
        return "CREATE VIEW " + self.name + " AS " + (self.sqlite if engine == "sqlite" else self.postgres)


@dataclass(frozen=True, slots=True)
class Probe:
    """A question that many transactions ask first: is the time in `column` due for any row of `table`?

    Without a column: does the table have any row? PostgreSQL answers it while the transaction begins.
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
    """A table with its key and indexes. PostgreSQL vacuums `hot` tables eagerly."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()
    hot: bool = False
    in_key: bool = False
    """True if SQLite stores rows in the index of the key instead of separately; for small rows."""
    fill: int = 85
    """Percentage of a page that new rows fill on PostgreSQL, for a `hot` table. An update needs no index
    entries if its page has room and no indexed column changes."""
    probes: tuple[Probe, ...] = ()
    deadlines: tuple[str, ...] = ()
    """Deadline column, null without a deadline, and the times that it counts from."""
    foreign_keys: tuple[ForeignKey, ...] = ()
    """Only on small tables; on tables that every call writes they would cost too much."""
    full_text: FullText | None = None
    views: tuple[View, ...] = ()
    filled_by: str | None = None
    """Statement run when the table is created, for example to count rows of an earlier release."""
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
    """All tables of one database, by name."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self.tables: dict[str, Table] = {META.name: META}
        for table in tables:
            if table.name in self.tables:
                raise AssertionError(f"table {table.name} is declared twice")
            self.tables[table.name] = table
            for foreign_key in table.foreign_keys:
                self._check(table, foreign_key)

    def _check(self, table: Table, foreign_key: ForeignKey) -> None:
        """Check that a foreign key refers to an earlier table, and that an index finds its rows."""
        what = f"the foreign key of {table.name} to {foreign_key.table}"
        target = self.tables.get(foreign_key.table)
        if target is None:
            raise AssertionError(f"{what}: that table must be declared before")
        own = [table.column(name).type for name in foreign_key.columns]
        if own != [target.column(name).type for name in target.key]:
            raise AssertionError(f"{what}: the columns must be those of its key, {', '.join(target.key)}")
        candidates = [table.key, *(index.columns for index in table.indexes)]
        if foreign_key.enforced and not any(
            columns[: len(foreign_key.columns)] == foreign_key.columns for columns in candidates
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
