"""What a database says of itself: tables, columns, keys and indexes, in the same words for both engines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import asyncpg

from perdure.kernel.storage.schema import Schema, Table

COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,
       pg_get_expr(d.adbin, d.adrelid), l.collname
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
  AND format_type(a.atttypid, a.atttypmod) <> 'tsvector'
ORDER BY c.relname, a.attnum
"""
INDEXES = """
SELECT t.relname, c.relname, i.indisprimary, i.indisunique, i.indisvalid, pg_get_expr(i.indpred, i.indrelid),
       (SELECT array_agg(pg_get_indexdef(i.indexrelid, k, true) ORDER BY k)
        FROM generate_series(1, i.indnkeyatts) AS k),
       i.indoption::int2[]
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
WHERE t.relnamespace = current_schema()::regnamespace
"""
FOREIGN_KEYS = """
SELECT c.relname, t.relname, k.confdeltype = 'c',
       ARRAY(SELECT a.attname FROM unnest(k.conkey) WITH ORDINALITY AS n (number, place)
             JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = n.number ORDER BY place),
       ARRAY(SELECT a.attname FROM unnest(k.confkey) WITH ORDINALITY AS n (number, place)
             JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = n.number ORDER BY place)
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_class t ON t.oid = k.confrelid
WHERE k.contype = 'f' AND c.relnamespace = current_schema()::regnamespace
"""
TYPES = {
    "INTEGER": "int",
    "REAL": "real",
    "TEXT": "text",
    "BLOB": "blob",
    "bigint": "int",
    "double precision": "real",
    "text": "text",
    "bytea": "blob",
}
FULL_TEXTS = """
SELECT c.relname, a.attname, pg_get_expr(d.adbin, d.adrelid), array_agg(x.relname::text)
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND format_type(a.atttypid, a.atttypmod) = 'tsvector'
JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
JOIN pg_index i ON i.indrelid = c.oid AND a.attnum = ANY (i.indkey)
JOIN pg_class x ON x.oid = i.indexrelid AND x.relam = (SELECT oid FROM pg_am WHERE amname = 'gin')
WHERE c.relnamespace = current_schema()::regnamespace AND a.attgenerated = 's'
GROUP BY 1, 2, 3
"""
DESCENDING = 1


class ColumnSeen(NamedTuple):
    type: str
    null: bool
    default: int | float | str | None


class IndexSeen(NamedTuple):
    columns: tuple[str, ...]
    where: str | None
    unique: bool


class ForeignKeySeen(NamedTuple):
    columns: tuple[str, ...]
    table: str
    key: tuple[str, ...]
    cascade: bool


class TableSeen(NamedTuple):
    """A table as it stands; columns by name, since an upgrade appends what a declaration has in its place."""

    columns: dict[str, ColumnSeen]
    key: tuple[str, ...]
    indexes: dict[str, IndexSeen]
    foreign_keys: frozenset[ForeignKeySeen]
    full_text: str | None = None


Catalog = dict[str, TableSeen]
Rows = dict[str, list[dict[str, Any]]]


def declared(tables: Iterable[Table]) -> Catalog:
    """What the declaration says a database has."""
    schema = Schema(tables)
    return {
        table.name: TableSeen(
            {each.name: ColumnSeen(each.type, each.null, each.default) for each in table.columns},
            table.key,
            {each.name: IndexSeen(each.columns, each.where, each.unique) for each in table.indexes},
            frozenset(
                ForeignKeySeen(each.columns, each.table, schema.tables[each.table].key, each.cascade)
                for each in table.foreign_keys
                if each.enforced
            ),
            None if table.full_text is None else table.full_text.name,
        )
        for table in schema.tables.values()
    }


def _default(kind: str, text: str | None) -> int | float | str | None:
    """A default as it is declared; an engine shows it as SQL, PostgreSQL perhaps with a type behind it."""
    if text is None:
        return None
    quoted = re.fullmatch(r"'(.*)'(::[a-z ]+)?", text, re.DOTALL)
    plain = quoted.group(1).replace("''", "'") if quoted else text.strip("()")
    return int(plain) if kind == "int" else float(plain) if kind == "real" else plain


# --- SQLite -----------------------------------------------------------------------------------------------


def of_sqlite(path: Path) -> Catalog:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        names = connection.execute(
            "SELECT name FROM pragma_table_list WHERE type = 'table' AND schema = 'main'"
            " AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
        return {str(name): _sqlite_table(connection, str(name)) for (name,) in names.fetchall()}
    finally:
        connection.close()


def _sqlite_table(connection: apsw.Connection, table: str) -> TableSeen:
    rows: list[Any] = connection.execute("SELECT * FROM pragma_table_info(?)", (table,)).fetchall()
    columns = {
        name: ColumnSeen(TYPES[kind], not strict, _default(TYPES[kind], default))
        for _, name, kind, strict, default, _ in rows
    }
    return TableSeen(
        columns,
        _sqlite_key(connection, table),
        _sqlite_indexes(connection, table),
        _sqlite_foreign_keys(connection, table),
        _sqlite_full_text(connection, table),
    )


def _sqlite_full_text(connection: apsw.Connection, table: str) -> str | None:
    """The full-text index that the triggers of a table keep in step."""
    asked = "SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?"
    texts = [str(text) for (text,) in connection.execute(asked, (table,)).fetchall()]
    names = {match for text in texts for match in re.findall(r"INSERT INTO (\w+)", text)}
    assert len(texts) == (3 if names else 0)
    return next(iter(names), None)


def _sqlite_key(connection: apsw.Connection, table: str) -> tuple[str, ...]:
    asked = "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk"
    return tuple(str(name) for (name,) in connection.execute(asked, (table,)).fetchall())


def _sqlite_foreign_keys(connection: apsw.Connection, table: str) -> frozenset[ForeignKeySeen]:
    asked = 'SELECT id, "table", "from", "to", on_delete FROM pragma_foreign_key_list(?) ORDER BY id, seq'
    found: dict[int, list[Any]] = {}
    for number, *row in connection.execute(asked, (table,)).fetchall():
        found.setdefault(int(str(number)), []).append(row)
    return frozenset(
        ForeignKeySeen(
            tuple(own for _, own, _, _ in rows),
            rows[0][0],
            # SQLite does not write down that it is the key.
            tuple(other for _, _, other, _ in rows if other) or _sqlite_key(connection, rows[0][0]),
            rows[0][3] == "CASCADE",
        )
        for rows in found.values()
    )


def _sqlite_indexes(connection: apsw.Connection, table: str) -> dict[str, IndexSeen]:
    asked = "SELECT name, \"unique\" FROM pragma_index_list(?) WHERE origin = 'c'"
    found: list[Any] = connection.execute(asked, (table,)).fetchall()
    return {name: _sqlite_index(connection, name, bool(unique)) for name, unique in found}


def _sqlite_index(connection: apsw.Connection, name: str, unique: bool) -> IndexSeen:
    asked = 'SELECT name, "desc" FROM pragma_index_xinfo(?) WHERE key = 1 ORDER BY seqno'
    columns: list[Any] = connection.execute(asked, (name,)).fetchall()
    ((text,),) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (name,)).fetchall()
    where = re.search(r"\bWHERE (.+)$", str(text))
    return IndexSeen(_with_order(columns), where.group(1) if where else None, unique)


def _with_order(columns: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    return tuple(name + (" DESC" if descending else "") for name, descending in columns)


def rows_of_sqlite(path: Path) -> Rows:
    """Every row of every table, by column."""
    tables = of_sqlite(path)
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return {name: _in_order(_records(connection, name, table)) for name, table in tables.items()}
    finally:
        connection.close()


def _records(connection: apsw.Connection, name: str, table: TableSeen) -> list[dict[str, Any]]:
    rows = connection.execute(f"SELECT {', '.join(table.columns)} FROM {name}").fetchall()
    return [dict(zip(table.columns, row, strict=True)) for row in rows]


# --- PostgreSQL -------------------------------------------------------------------------------------------


async def of_postgres(url: str) -> Catalog:
    connection = await asyncpg.connect(url)
    try:
        columns: dict[str, dict[str, ColumnSeen]] = {}
        for table, name, kind, null, default, collation in await connection.fetch(COLUMNS):
            assert collation in (None, "C"), f"{table}.{name} sorts otherwise than on SQLite"
            seen = ColumnSeen(TYPES[kind], null, _default(TYPES[kind], default))
            columns.setdefault(table, {})[name] = seen
        found = await connection.fetch(INDEXES)
        foreign_keys: dict[str, list[ForeignKeySeen]] = {}
        for table, target, cascade, own, key in await connection.fetch(FOREIGN_KEYS):
            foreign_key = ForeignKeySeen(tuple(own), target, tuple(key), cascade)
            foreign_keys.setdefault(table, []).append(foreign_key)
        full_texts = {}
        for table, name, expression, indexes in await connection.fetch(FULL_TEXTS):
            assert "to_tsvector" in expression
            assert indexes == [f"{name}_gin"]
            full_texts[table] = name
    finally:
        await connection.close()
    return {
        table: TableSeen(
            columns[table],
            *_postgres_indexes(table, found, full_texts.get(table)),
            frozenset(foreign_keys.get(table, ())),
            full_texts.get(table),
        )
        for table in sorted(columns)
    }


def _postgres_indexes(
    table: str, found: Iterable[Any], full_text: str | None
) -> tuple[tuple[str, ...], dict[str, IndexSeen]]:
    key: tuple[str, ...] = ()
    indexes: dict[str, IndexSeen] = {}
    for owner, name, primary, unique, valid, where, columns, options in found:
        if owner != table or name == f"{full_text}_gin":
            continue
        assert valid, f"{name} is not valid"
        if primary:
            key = tuple(each.strip('"') for each in columns)
        else:
            ordered = _with_order(
                [(each.strip('"'), how & DESCENDING) for each, how in zip(columns, options, strict=True)]
            )
            indexes[name] = IndexSeen(ordered, re.sub(r"[()]", "", where) if where else None, unique)
    return key, indexes


async def rows_of_postgres(url: str) -> Rows:
    connection = await asyncpg.connect(url)
    try:
        tables = await of_postgres(url)
        return {
            name: _in_order(
                [
                    dict(row)
                    for row in await connection.fetch(f'SELECT {", ".join(table.columns)} FROM "{name}"')
                ]
            )
            for name, table in tables.items()
        }
    finally:
        await connection.close()


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))
