"""The whole difference between the two engines' SQL.

A statement is written once with named parameters (`:name`) and a few marks:

| mark | SQLite | PostgreSQL |
|---|---|---|
| `{among:names}` | `IN (SELECT value FROM json_each(:names))` | `= ANY(:names)` |
| `{lock}` | nothing: there is one writer | `FOR NO KEY UPDATE` |
| `{skip}` | nothing | `FOR NO KEY UPDATE SKIP LOCKED` |
| `{plain:column}` | `+column`, which keeps the planner off its indexes | `column` |
| `{greatest:column,name}` | `max(column, :name)` | `greatest(column, :name)` |
| `{has:column,name}` | `instr(column, :name) > 0` | `strpos(column, :name) > 0` |

`:ns` and `:now` are bound by the transaction itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.kernel.storage.schema import Column, Index, Table

_PARAMETER = re.compile(r"(?<![:\w]):([a-z][a-z0-9_]*)")
_AMONG = re.compile(r"\{among:([a-z0-9_]+)\}")
_LOCK = "FOR NO KEY UPDATE"
_MARKS = (
    (_AMONG, r"IN (SELECT value FROM json_each(:\1))", r"= ANY(:\1)"),
    (re.compile(r"\{plain:([a-z_.]+)\}"), r"+\1", r"\1"),
    (re.compile(r"\{has:([a-z_.]+),([a-z0-9_]+)\}"), r"instr(\1, :\2) > 0", r"strpos(\1, :\2) > 0"),
    (re.compile(r"\{greatest:([a-z_.]+),([a-z0-9_]+)\}"), r"max(\1, :\2)", r"greatest(\1, :\2)"),
    (re.compile(r"\{lock\}"), "", _LOCK),
    (re.compile(r"\{skip\}"), "", _LOCK + " SKIP LOCKED"),
)
"""Each mark, and what SQLite and PostgreSQL read in its place."""

SQLITE_TYPES = {"int": "INTEGER", "text": "TEXT", "blob": "BLOB"}
POSTGRES_TYPES = {"int": "BIGINT", "text": 'TEXT COLLATE "C"', "blob": "BYTEA"}
POSTGRES_SCALARS = {"int": "bigint", "text": "text", "blob": "bytea"}

_EAGER_VACUUM = (
    "fillfactor = 85",
    "autovacuum_vacuum_scale_factor = 0.02",
    "autovacuum_vacuum_threshold = 1000",
    "autovacuum_analyze_scale_factor = 0.05",
    "autovacuum_vacuum_cost_delay = 0",
)

Folded = tuple[bool, ...]
"""For each column of a bulk write, whether all rows have the same value, which is then sent once."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One piece of SQL in both dialects."""

    sqlite: str
    postgres: str
    names: tuple[str, ...]
    lists: frozenset[str]

    def bind_sqlite(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters as SQLite takes them: a list travels as JSON."""
        if not self.lists:
            return parameters
        return {k: json.dumps(v) if k in self.lists else v for k, v in parameters.items()}

    def bind_postgres(self, parameters: Mapping[str, Any]) -> list[Any]:
        return [parameters[name] for name in self.names]


@lru_cache(maxsize=2048)
def statement(text: str) -> Statement:
    """Translate `text` into both dialects, once."""
    lists = frozenset(_AMONG.findall(text))
    sqlite, postgres = text, text
    for mark, theirs, ours in _MARKS:
        sqlite, postgres = mark.sub(theirs, sqlite), mark.sub(ours, postgres)
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in names:
            names.append(name)
        return "$" + str(names.index(name) + 1)

    postgres = _PARAMETER.sub(number, postgres)
    return Statement(sqlite, postgres, tuple(names), lists)


@dataclass(frozen=True, slots=True)
class BulkUpdate:
    """An update of many rows, each with its own values: `sets` where `keys` and `guards` still hold.

    A row is a tuple of the values of sets, keys and guards, in that order. Guards are compared as they were
    read, so that a row that has changed meanwhile is not counted.
    """

    table: Table
    sets: tuple[str, ...]
    keys: tuple[str, ...]
    guards: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return self.sets + self.keys + self.guards

    @property
    def sqlite(self) -> str:
        return _bulk_sqlite(self)


@lru_cache(maxsize=256)
def _bulk_sqlite(update: BulkUpdate) -> str:
    sets = ", ".join(map("{} = ?".format, update.sets))
    where = " AND ".join([*map("{} = ?".format, update.keys), *map("{} IS ?".format, update.guards)])
    return " ".join(("UPDATE", update.table.name, "SET", sets, "WHERE", where))


@lru_cache(maxsize=1024)
def update_postgres(update: BulkUpdate, folded: Folded) -> str:
    columns, values = update.columns, _values(update.table, update.columns, folded)
    sets = ", ".join(map("{} = {}".format, update.sets, values))
    at = len(update.sets) + len(update.keys)
    where = [*map("t.{} = {}".format, update.keys, values[len(update.sets) : at])]
    # Written so that no index serves it: the row is found by its key.
    where += map("t.{} IS NOT DISTINCT FROM {}".format, update.guards, values[at:])
    source = _unnest(update.table, columns, folded)
    return " ".join(
        ("UPDATE", update.table.name, "AS t SET", sets, "FROM", source, "WHERE", " AND ".join(where))
    )


def _values(table: Table, columns: Sequence[str], folded: Folded) -> list[str]:
    """What stands for each column: a parameter where it is folded, else a column of the unnested arrays."""
    return [
        f"${number}::{POSTGRES_SCALARS[table.column(name).type]}" if once else f"v.c{number}"
        for number, (name, once) in enumerate(zip(columns, folded, strict=True), 1)
    ]


def _unnest(table: Table, columns: Sequence[str], folded: Folded) -> str:
    numbered = [(number, name) for number, name in enumerate(columns, 1) if not folded[number - 1]]
    arrays = [f"${number}::{POSTGRES_SCALARS[table.column(name).type]}[]" for number, name in numbered]
    names = [f"c{number}" for number, _ in numbered]
    return " ".join(("unnest(", ", ".join(arrays), ") AS v(", ", ".join(names), ")"))


@lru_cache(maxsize=256)
def insert_sqlite(table: Table) -> str:
    marks = ", ".join("?" * len(table.columns))
    return " ".join(("INSERT INTO", table.name, "(", ", ".join(table.names), ") VALUES (", marks, ")"))


@lru_cache(maxsize=1024)
def insert_postgres(table: Table, folded: Folded) -> str:
    names = table.names
    values = ", ".join(_values(table, names, folded))
    source = _unnest(table, names, folded)
    return " ".join(("INSERT INTO", table.name, "(", ", ".join(names), ") SELECT", values, "FROM", source))


def bulk_insert(table: Table, rows: Sequence[tuple[Any, ...]]) -> tuple[str, list[Any]]:
    """PostgreSQL's insert of whole rows, and its parameters."""
    folded, columns = _fold(rows, keep=(len(table.key) - 1,))
    return insert_postgres(table, folded), columns


def bulk_update(update: BulkUpdate, rows: Sequence[tuple[Any, ...]]) -> tuple[str, list[Any]]:
    """PostgreSQL's update of many rows, and its parameters.

    Keys are never folded: a constant would tempt the planner to scan a whole namespace.
    """
    folded, columns = _fold(rows, keep=range(len(update.sets), len(update.sets) + len(update.keys)))
    return update_postgres(update, folded), columns


def _fold(rows: Sequence[tuple[Any, ...]], keep: Sequence[int]) -> tuple[Folded, list[Any]]:
    """The rows as columns, those with one value for all as that value; the columns `keep` stay whole."""
    count = len(rows)
    columns = list(zip(*rows, strict=True))
    folded = tuple(
        place not in keep and column.count(column[0]) == count for place, column in enumerate(columns)
    )
    return folded, [column[0] if once else column for column, once in zip(columns, folded, strict=True)]


def _arrays(table: Table, columns: Sequence[str]) -> str:
    casts = (POSTGRES_SCALARS[table.column(name).type] for name in columns)
    return ", ".join(map("${}::{}[]".format, range(1, len(columns) + 1), casts))


@lru_cache(maxsize=64)
def existing_sqlite(table: Table) -> str:
    where = " AND ".join(map("{} = ?".format, table.key))
    return " ".join(("SELECT", ", ".join(table.key), "FROM", table.name, "WHERE", where))


@lru_cache(maxsize=64)
def existing_postgres(table: Table) -> str:
    names = ", ".join(table.key)
    source = " ".join(("unnest(", _arrays(table, table.key), ") AS v(", names, ")"))
    columns = ", ".join(map("t.{}".format, table.key))
    return " ".join(("SELECT", columns, "FROM", source, "JOIN", table.name, "AS t USING (", names, ")"))


@lru_cache(maxsize=64)
def lock_postgres(table: Table) -> str:
    """Lock rows by primary key in ascending order; its first column is `ns`."""
    names = ", ".join(table.key)
    source = " ".join(("SELECT * FROM unnest(", _arrays(table, table.key), ")"))
    return " ".join(
        (
            "SELECT",
            names,
            "FROM",
            table.name,
            "WHERE (",
            names,
            ") IN (",
            source,
            ") ORDER BY",
            names,
            "FOR NO KEY UPDATE",
        )
    )


def create_table(table: Table, engine: str) -> str:
    types = SQLITE_TYPES if engine == "sqlite" else POSTGRES_TYPES
    parts = [column_definition(column, types) for column in table.columns]
    parts.append("PRIMARY KEY (" + ", ".join(table.key) + ")")
    tail = ""
    if engine == "postgres" and table.hot:
        tail = " WITH (" + ", ".join(_EAGER_VACUUM) + ")"
    return "CREATE TABLE IF NOT EXISTS " + table.name + " (" + ", ".join(parts) + ")" + tail


def column_definition(column: Column, types: Mapping[str, str]) -> str:
    parts = [column.name, types[column.type]]
    if not column.null:
        parts.append("NOT NULL")
    if column.default is not None:
        parts.append("DEFAULT " + str(int(column.default)))
    return " ".join(parts)


def add_column(table: Table, column: Column, engine: str) -> str:
    types = SQLITE_TYPES if engine == "sqlite" else POSTGRES_TYPES
    return "ALTER TABLE " + table.name + " ADD COLUMN " + column_definition(column, types)


def create_index(table: Table, index: Index, *, concurrently: bool = False) -> str:
    words = ["CREATE", "UNIQUE" if index.unique else "", "INDEX", "CONCURRENTLY" if concurrently else ""]
    words += ["IF NOT EXISTS", index.name, "ON", table.name, "(" + ", ".join(index.columns) + ")"]
    if index.where:
        words += ["WHERE", index.where]
    return " ".join(word for word in words if word)
