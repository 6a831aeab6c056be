"""The SQL that defines tables, columns, indexes and views, on either engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perdure.kernel.storage.dialect import POSTGRES_TYPES, SQLITE_TYPES

if TYPE_CHECKING:
    from perdure.kernel.storage.schema import Column, ForeignKey, Index, Table

_EAGER_VACUUM = (
    "autovacuum_vacuum_scale_factor = 0.02",
    "autovacuum_vacuum_threshold = 1000",
    "autovacuum_analyze_scale_factor = 0.05",
    "autovacuum_vacuum_cost_delay = 0",
)


def create_table(table: Table, engine: str) -> str:
    types = SQLITE_TYPES if engine == "sqlite" else POSTGRES_TYPES
    parts = [column_definition(column, types) for column in table.columns]
    parts.append("PRIMARY KEY (" + ", ".join(table.key) + ")")
    parts += [_build_foreign_key(foreign_key) for foreign_key in table.foreign_keys if foreign_key.enforced]
    tail = " WITHOUT ROWID" if engine == "sqlite" and table.in_key else ""
    if engine == "postgres" and table.hot:
        tail = " WITH (" + ", ".join(("fillfactor = " + str(table.fill), *_EAGER_VACUUM)) + ")"
    return "CREATE TABLE IF NOT EXISTS " + table.name + " (" + ", ".join(parts) + ")" + tail


def _build_foreign_key(foreign_key: ForeignKey) -> str:
    """Build the clause of a foreign key, which refers to the other table's key."""
    words = ["FOREIGN KEY (" + ", ".join(foreign_key.columns) + ")", "REFERENCES", foreign_key.table]
    return " ".join([*words, "ON DELETE CASCADE"] if foreign_key.cascade else words)


def column_definition(column: Column, types: Mapping[str, str]) -> str:
    parts = [column.name, types[column.type]]
    if not column.null:
        parts.append("NOT NULL")
    if column.default is not None:
        parts.append("DEFAULT " + _format_literal(column.default))
    return " ".join(parts)


def _format_literal(value: int | float | str) -> str:
    """Write a declared value as a literal of both engines."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def add_column(table: Table, column: Column, engine: str) -> str:
    types = SQLITE_TYPES if engine == "sqlite" else POSTGRES_TYPES
    return "ALTER TABLE " + table.name + " ADD COLUMN " + column_definition(column, types)


def create_index(table: Table, index: Index, *, concurrently: bool = False) -> str:
    words = ["CREATE", "UNIQUE" if index.unique else "", "INDEX", "CONCURRENTLY" if concurrently else ""]
    words += ["IF NOT EXISTS", index.name, "ON", table.name, "(" + ", ".join(index.columns) + ")"]
    if index.where:
        words += ["WHERE", index.where]
    return " ".join(word for word in words if word)


def iso_time(column: str, engine: str, *, text: bool = True) -> str:
    """Return the SQL for a column of microseconds as ISO 8601 in UTC, or as `timestamptz`."""
    if engine == "sqlite":
        return "strftime('%Y-%m-%dT%H:%M:%fZ', (" + column + " / 1000) / 1000.0, 'unixepoch')"
    time = "timestamp 'epoch' + " + column + " * interval '1 microsecond'"
    if text:
        return "to_char(" + time + ', \'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"\')'
    return "((" + time + ") AT TIME ZONE 'UTC')"


def sql_cases(value: str, results: Mapping[str, str], otherwise: str | None = None) -> str:
    """Return the SQL for the result of each text that a value can be."""
    parts = ["CASE", value]
    for text, result in results.items():
        parts += ["WHEN", _format_literal(text), "THEN", _format_literal(result)]
    return " ".join([*parts, *(() if otherwise is None else ("ELSE", otherwise)), "END"])
