"""Create and extend the tables on PostgreSQL, one process at a time."""

from __future__ import annotations

from perdure.kernel.errors import NewerSchema
from perdure.kernel.storage import ddl, fulltext
from perdure.kernel.storage.postgres_connection import Connection
from perdure.kernel.storage.schema import LARGE_TABLE_ROWS, META, SCHEMA_GENERATION, Index, Schema, Table

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('perdure schema', 0))"
_COLUMNS = """
SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
  AND a.attnum > 0 AND NOT a.attisdropped
"""
_INDEXES = """
SELECT c.relname, i.indisvalid, EXISTS (
    SELECT 1 FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid
) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = current_schema()::regnamespace
"""
_SIZES = "SELECT relname, reltuples::bigint FROM pg_class WHERE relnamespace = current_schema()::regnamespace"


async def upgrade(connection: Connection, schema: Schema) -> list[tuple[Table, Index]]:
    """Add missing tables, columns and indexes; return the indexes of large tables, which are built later."""
    async with connection.transaction():
        await connection.execute(_LOCK)
        columns: dict[str, set[str]] = {}
        for table_name, column_name in await connection.fetch(_COLUMNS):
            columns.setdefault(table_name, set()).add(column_name)
        await _upgrade_table(connection, META, columns.get(META.name))
        await _check_generation(connection)
        for table in schema.tables.values():
            await _upgrade_table(connection, table, columns.get(table.name))
        missing = await _upgrade_indexes(connection, schema, set(columns))
        await _create_views(connection, schema)
        return missing


async def _upgrade_table(connection: Connection, table: Table, present: set[str] | None) -> None:
    if present is None:
        await connection.execute(ddl.create_table(table, "postgres"))
        if table.filled_by is not None:
            await connection.execute(table.filled_by)
    for column in table.columns:
        if present is not None and column.name not in present:
            await connection.execute(ddl.add_column(table, column, "postgres"))
    if table.full_text is not None and table.full_text.name not in (present or ()):
        for text in fulltext.create_postgres(table, table.full_text):
            await connection.execute(text)


async def _upgrade_indexes(
    connection: Connection, schema: Schema, tables: set[str]
) -> list[tuple[Table, Index]]:
    indexes = {name: (valid, building) for name, valid, building in await connection.fetch(_INDEXES)}
    sizes = dict(await connection.fetch(_SIZES))
    missing = []
    for table, index in schema.indexes():
        valid, building = indexes.get(index.name, (None, False))
        if valid:
            continue
        if valid is False and not building:
            # An interrupted concurrent build leaves an invalid index behind.
            await connection.execute("DROP INDEX " + index.name)
        if building or (table.name in tables and sizes.get(table.name, 0) > LARGE_TABLE_ROWS):
            missing.append((table, index))
        else:
            await connection.execute(ddl.create_index(table, index))
    return missing


async def _create_views(connection: Connection, schema: Schema) -> None:
    """Create missing views. A name that another program uses is left to it."""
    taken = {name for name, _ in await connection.fetch(_SIZES)}
    for view in schema.views:
        if view.name not in taken:
            await connection.execute(view.create("postgres"))


async def _check_generation(connection: Connection) -> None:
    generation = await connection.fetchval("SELECT value FROM perdure_meta WHERE name = 'schema'")
    if generation is None:
        await connection.execute("INSERT INTO perdure_meta VALUES ('schema', $1)", str(SCHEMA_GENERATION))
    elif int(generation) > SCHEMA_GENERATION:
        raise NewerSchema(f"the database has schema {generation}; this release knows {SCHEMA_GENERATION}")
