"""The whole difference between the two engines' SQL.

A statement is written once with named parameters (`:name`) and a few marks:

| mark | SQLite | PostgreSQL |
|---|---|---|
| `{among:names}` | `IN (SELECT value FROM json_each(:names))` | `= ANY(:names)` |
| `{lock}` | nothing: there is one writer | `FOR NO KEY UPDATE` |
| `{skip}` | nothing | `FOR NO KEY UPDATE SKIP LOCKED` |
| `{plain:column}` | `+column`, which keeps the planner off its indexes | `column` |
| `{greatest:column,name}` | `max(column, :name)` | `greatest(column, :name)` |
| `{larger:a,b}` | `max(a, b)` | `greatest(a, b)` |
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
_WORD = re.compile(r"[a-z_]+")
_AMONG = re.compile(r"\{among:([a-z0-9_]+)\}")
_LOCK = "FOR NO KEY UPDATE"
_MARKS = (
    (_AMONG, r"IN (SELECT value FROM json_each(:\1))", r"= ANY(:\1)"),
    (re.compile(r"\{plain:([a-z_.]+)\}"), r"+\1", r"\1"),
    (re.compile(r"\{has:([a-z_.]+),([a-z0-9_]+)\}"), r"instr(\1, :\2) > 0", r"strpos(\1, :\2) > 0"),
    (re.compile(r"\{greatest:([a-z_.]+),([a-z0-9_]+)\}"), r"max(\1, :\2)", r"greatest(\1, :\2)"),
    (re.compile(r"\{larger:([a-z_.]+),([a-z_.]+)\}"), r"max(\1, \2)", r"greatest(\1, \2)"),
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
    single: str = ""
    """SQLite's text where each list has one item, which it finds twice as fast."""

    @property
    def words(self) -> frozenset[str]:
        """Every name in it, those of its tables among them."""
        return _words(self.postgres)

    def bind_sqlite(self, parameters: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """The text and the parameters as SQLite takes them: a list of more than one travels as JSON."""
        if not self.lists:
            return self.sqlite, parameters
        if all(len(parameters[name]) == 1 for name in self.lists):
            return self.single, {k: v[0] if k in self.lists else v for k, v in parameters.items()}
        return self.sqlite, {k: json.dumps(v) if k in self.lists else v for k, v in parameters.items()}

    def bind_postgres(self, parameters: Mapping[str, Any]) -> list[Any]:
        return [parameters[name] for name in self.names]


@lru_cache(maxsize=2048)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


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
    single = _AMONG.sub(r"IN (:\1)", text)
    for mark, theirs, _ in _MARKS:
        single = mark.sub(theirs, single)
    return Statement(sqlite, postgres, tuple(names), lists, single)


@dataclass(frozen=True, slots=True, eq=False)
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
    def kept(self) -> range:
        """Keys are never folded: a constant would tempt the planner to scan a whole namespace."""
        return range(len(self.sets), len(self.sets) + len(self.keys))

    @property
    def sqlite(self) -> str:
        return _update_sqlite(self)

    def postgres(self, values: Sequence[str], source: str) -> str:
        sets = ", ".join(map("{} = {}".format, self.sets, values))
        at = len(self.sets) + len(self.keys)
        where = [*map("t.{} = {}".format, self.keys, values[len(self.sets) : at])]
        # Written so that no index serves it: the row is found by its key.
        where += map("t.{} IS NOT DISTINCT FROM {}".format, self.guards, values[at:])
        return " ".join(
            ("UPDATE", self.table.name, "AS t SET", sets, "FROM", source, "WHERE", " AND ".join(where))
        )


@dataclass(frozen=True, slots=True, eq=False)
class BulkInsert:
    """An insert of many whole rows, in the order of the table's columns.

    `on_conflict` is what follows `ON CONFLICT (key) DO`; without it a key that is taken is an error.
    """

    table: Table
    on_conflict: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.table.names

    @property
    def kept(self) -> range:
        return range(len(self.table.key) - 1, len(self.table.key))

    @property
    def sqlite(self) -> str:
        return _insert_sqlite(self)

    def postgres(self, values: Sequence[str], source: str) -> str:
        words = ("INSERT INTO", self.table.name, "(", ", ".join(self.columns), ") SELECT", ", ".join(values))
        return " ".join((*words, "FROM", source, statement(self._on_conflict).postgres)).strip()

    @property
    def _on_conflict(self) -> str:
        return (
            "ON CONFLICT (" + ", ".join(self.table.key) + ") DO " + self.on_conflict
            if self.on_conflict
            else ""
        )


Bulk = BulkUpdate | BulkInsert
Write = tuple[Bulk, Sequence[tuple[Any, ...]]]
"""A bulk write and its rows."""


@lru_cache(maxsize=64)
def plain_insert(table: Table) -> BulkInsert:
    """An insert of rows that must be new; the same one each time, since its texts are kept."""
    return BulkInsert(table)


@lru_cache(maxsize=256)
def _update_sqlite(update: BulkUpdate) -> str:
    sets = ", ".join(map("{} = ?".format, update.sets))
    where = " AND ".join([*map("{} = ?".format, update.keys), *map("{} IS ?".format, update.guards)])
    return " ".join(("UPDATE", update.table.name, "SET", sets, "WHERE", where))


@lru_cache(maxsize=256)
def _insert_sqlite(insert: BulkInsert) -> str:
    names, marks = ", ".join(insert.columns), ", ".join("?" * len(insert.columns))
    words = ("INSERT INTO", insert.table.name, "(", names, ") VALUES (", marks, ")")
    return " ".join((*words, statement(insert._on_conflict).sqlite)).strip()


def write_postgres(writes: Sequence[Write]) -> tuple[str, list[Any]]:
    """PostgreSQL's text of bulk writes, as one statement, and its parameters."""
    shapes: list[tuple[Bulk, Folded]] = []
    parameters: list[Any] = []
    for bulk, rows in writes:
        folded, columns = _fold(bulk, rows)
        shapes.append((bulk, folded))
        parameters += columns
    return _writes_postgres(tuple(shapes)), parameters


@lru_cache(maxsize=1024)
def _writes_postgres(writes: tuple[tuple[Bulk, Folded], ...]) -> str:
    """One write as it is; several as parts of a query that answers with their counts."""
    texts, number = [], 1
    for bulk, folded in writes:
        texts.append(bulk.postgres(_values(bulk, folded, number), _unnest(bulk, folded, number)))
        number += len(folded)
    if len(texts) == 1:
        return texts[0]
    parts = ", ".join(map("w{} AS ({} RETURNING 1)".format, range(len(texts)), texts))
    counts = ", ".join(map("(SELECT count(*) FROM w{})".format, range(len(texts))))
    return " ".join(("WITH", parts, "SELECT", counts))


def _values(bulk: Bulk, folded: Folded, first: int) -> list[str]:
    """What stands for each column: a parameter where it is folded, else a column of the unnested arrays."""
    return [
        f"${number}::{_scalar(bulk, name)}" if once else f"v.c{number}"
        for number, (name, once) in enumerate(zip(bulk.columns, folded, strict=True), first)
    ]


def _unnest(bulk: Bulk, folded: Folded, first: int) -> str:
    numbered = [(n, name) for n, name in enumerate(bulk.columns, first) if not folded[n - first]]
    arrays = [f"${n}{_cast(_scalar(bulk, name))}" for n, name in numbered]
    names = [f"c{n}" for n, _ in numbered]
    return " ".join(("unnest(", ", ".join(arrays), ") AS v(", ", ".join(names), ")"))


def _scalar(bulk: Bulk, name: str) -> str:
    return POSTGRES_SCALARS[bulk.table.column(name).type]


def _cast(scalar: str) -> str:
    return "::text::bigint[]" if scalar == "bigint" else f"::{scalar}[]"


def _array(column: Sequence[Any], kind: str) -> Any:
    """An array as it is sent. Numbers travel as one text: one by one they take the client far longer."""
    if kind != "int":
        return column
    return "{" + ",".join(["NULL" if number is None else str(number) for number in column]) + "}"


def _fold(bulk: Bulk, rows: Sequence[tuple[Any, ...]]) -> tuple[Folded, list[Any]]:
    """The rows as columns, those with one value for all as that value; what is `kept` stays whole."""
    count, kept, column_of = len(rows), bulk.kept, bulk.table.column
    folded: list[bool] = []
    sent: list[Any] = []
    for place, (name, column) in enumerate(zip(bulk.columns, zip(*rows, strict=True), strict=True)):
        once = place not in kept and column.count(column[0]) == count
        folded.append(once)
        sent.append(column[0] if once else _array(column, column_of(name).type))
    return tuple(folded), sent


def _arrays(table: Table, columns: Sequence[str]) -> str:
    casts = (_cast(POSTGRES_SCALARS[table.column(name).type]) for name in columns)
    return ", ".join(map("${}{}".format, range(1, len(columns) + 1), casts))


def key_arrays(table: Table, keys: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Primary keys as PostgreSQL's parameters of `existing_postgres` and `lock_postgres`."""
    columns = zip(*keys, strict=True)
    return [_array(column, table.column(name).type) for name, column in zip(table.key, columns, strict=True)]


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
