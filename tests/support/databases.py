"""Databases that the tests of one process share, because a new one costs more than most tests."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg

from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.runtime.stores import TABLES
from perdure.testing import servers

CREATED = ", ".join(f"'{table.name}'" for table in TABLES)
# A foreign key names a table created earlier, so empty the tables from the last one.
EMPTY = f"""
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'perdure_meta'
    ORDER BY array_position(ARRAY[{CREATED}], tablename::text) DESC NULLS FIRST LOOP
    EXECUTE format('DELETE FROM %I', name);
  END LOOP;
END $$
"""


BLANK = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
  WHERE datname = current_database() AND pid <> pg_backend_pid();
DROP SCHEMA public CASCADE;
CREATE SCHEMA public;
"""


# After the first token, callers of every namespace need one.
REFUSE_TOKENS = """
CREATE FUNCTION refuse_token() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'a test that makes tokens needs a database of its own';
END $$;
CREATE TRIGGER refuse_token BEFORE INSERT ON tokens FOR EACH STATEMENT EXECUTE FUNCTION refuse_token();
"""


class Databases:
    """On each PostgreSQL server: a database for namespaces, one that is emptied, one without tables.

    On SQLite: a file with all tables, which is copied for each test.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="perdure-template-")
        self._file: Path | None = None
        self._shared: dict[str, str] = {}
        self._emptied: dict[str, str] = {}
        self._blank: dict[str, str] = {}

    def shared(self, server_url: str) -> str:
        """Return the URL of the database in which each test has its own namespace."""
        is_new = server_url not in self._shared
        url = _found(self._shared, server_url)
        if is_new:
            _wait_for(_execute(url, REFUSE_TOKENS))
        return url

    def emptied(self, server_url: str) -> str:
        """Return the URL of the database for one test at a time, with all tables and no rows."""
        url = _found(self._emptied, server_url)
        _wait_for(_execute(url, EMPTY))
        return url

    def blank(self, server_url: str) -> str:
        """Return the URL of the database for one test at a time, without tables."""
        url = _found(self._blank, server_url, migrated=False)
        _wait_for(_execute(url, BLANK))
        return url

    def copy_file(self, target: Path) -> None:
        """Create a SQLite database with all tables and no rows."""
        if self._file is None:
            file = Path(self._folder.name) / "template.db"
            _wait_for(_migrate(SqliteStorage(file, TABLES)))
            self._file = file
        shutil.copy(self._file, target)

    def drop(self) -> None:
        self._folder.cleanup()
        for made in (self._shared, self._emptied, self._blank):
            for server_url, name in made.items():
                servers.drop_database(server_url, name)


def _found(made: dict[str, str], server_url: str, *, migrated: bool = True) -> str:
    if server_url not in made:
        name = f"test_{uuid.uuid4().hex}"
        servers.create_database(server_url, name)
        if migrated:
            _wait_for(_migrate(PostgresStorage(servers.with_database(server_url, name), TABLES)))
        made[server_url] = name
    return servers.with_database(server_url, made[server_url])


def _wait_for(work: Coroutine[Any, Any, None]) -> None:
    # Use a separate thread, because the caller's may run an event loop.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


async def _execute(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


async def _migrate(storage: Storage) -> None:
    try:
        await storage.run(_nothing)
    finally:
        await storage.close()


async def _nothing(tx: Tx) -> None:
    """Do nothing; the first operation on a database creates its tables."""
