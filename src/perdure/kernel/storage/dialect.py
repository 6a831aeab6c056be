"""The whole difference between the two engines' SQL.

A statement is written once with named parameters (`:name`) and a few marks:

| mark | SQLite | PostgreSQL |
|---|---|---|
| `{among:names}` | `IN (SELECT value FROM json_each(:names))` | `= ANY(:names)` |
| `{lock}` | nothing: there is one writer | `FOR NO KEY UPDATE` |
| `{skip}` | nothing | `FOR NO KEY UPDATE SKIP LOCKED` |
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
_HAS = re.compile(r"\{has:([a-z_.]+),([a-z0-9_]+)\}")

SQLITE_TYPES = {"int": "INTEGER", "text": "TEXT", "blob": "BLOB"}
POSTGRES_TYPES = {"int": "BIGINT", "text": 'TEXT COLLATE "C"', "blob": "BYTEA"}
POSTGRES_ARRAYS = {"int": "bigint[]", "text": "text[]", "blob": "bytea[]"}


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
    sqlite = _AMONG.sub(r"IN (SELECT value FROM json_each(:\1))", text)
    sqlite = _HAS.sub(r"instr(\1, :\2) > 0", sqlite).replace("{lock}", "").replace("{skip}", "")
    postgres = _AMONG.sub(r"= ANY(:\1)", text)
    postgres = _HAS.sub(r"strpos(\1, :\2) > 0", postgres)
    postgres = postgres.replace("{lock}", "FOR NO KEY UPDATE").replace(
        "{skip}", "FOR NO KEY UPDATE SKIP LOCKED"
    )
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
    def sqlite(self) -> str:
        return _bulk_sqlite(self)

    @property
    def postgres(self) -> str:
        return _bulk_postgres(self)


@lru_cache(maxsize=256)
def _bulk_sqlite(update: BulkUpdate) -> str:
    sets = ", ".join(map("{} = ?".format, update.sets))
    where = " AND ".join(map("{} = ?".format, update.keys + update.guards))
    return " ".join(("UPDATE", update.table.name, "SET", sets, "WHERE", where))


@lru_cache(maxsize=256)
def _bulk_postgres(update: BulkUpdate) -> str:
    names = update.sets + update.keys + tuple(map("was_{}".format, update.guards))
    columns = update.sets + update.keys + update.guards
    sets = ", ".join(map("{0} = v.{0}".format, update.sets))
    where = [f"t.{key} = v.{key}" for key in update.keys] + [
        f"t.{guard} = v.was_{guard}" for guard in update.guards
    ]
    source = " ".join(("unnest(", _arrays(update.table, columns), ") AS v(", ", ".join(names), ")"))
    return " ".join(
        ("UPDATE", update.table.name, "AS t SET", sets, "FROM", source, "WHERE", " AND ".join(where))
    )


def _arrays(table: Table, columns: Sequence[str]) -> str:
    casts = (POSTGRES_ARRAYS[table.column(name).type] for name in columns)
    return ", ".join(map("${}::{}".format, range(1, len(columns) + 1), casts))


@lru_cache(maxsize=256)
def insert_sqlite(table: Table) -> str:
    marks = ", ".join("?" * len(table.columns))
    return " ".join(("INSERT INTO", table.name, "(", ", ".join(table.names), ") VALUES (", marks, ")"))


@lru_cache(maxsize=256)
def insert_postgres(table: Table) -> str:
    columns = ", ".join(table.names)
    source = " ".join(("SELECT * FROM unnest(", _arrays(table, table.names), ")"))
    return " ".join(("INSERT INTO", table.name, "(", columns, ")", source))


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
        tail = (
            " WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02,"
            " autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)"
        )
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
