"""A process is killed while it makes a new database file, or adds to one what an older release lacked."""

import asyncio
import random
import shutil
import time
from pathlib import Path

import apsw
from tests.chaos.child import Plan
from tests.chaos.handle import Child
from tests.chaos.scenario import Run
from tests.chaos.stores import TABLES, damaged_pages, open_storage, store_over
from tests.support.snapshot import take

from perdure.kernel.storage.schema import Schema, Table

OLD_ROLLOUTS = 50
NEWER_COLUMNS = {"rollouts": ("outcome", "queued_as"), "attempts": ("reason", "charged")}
EARLY = "killed before it was open"
LONGEST = 20
"""So many times as many files are made at most, until one process was killed before it was done."""
NEWER_TABLES = ("lines", "chaos_endings")


class Births:
    """Files that are made or upgraded by a process that does not live to see it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._random = random.Random(run.seed)
        self._old = run.folder / "old.db"
        self._tokens = asyncio.run(make_old_file(self._old))
        self._spare = Child()

    def kill_all(self) -> None:
        try:
            for number in range(1, self._run.size * LONGEST + 1):
                if number > self._run.size and self._run.facts[EARLY]:
                    break
                path = self._run.folder / f"birth-{number}.db"
                upgraded = self._random.random() < 0.5
                if upgraded:
                    shutil.copy(self._old, path)
                self._kill_one(number, path)
                self._run.facts["upgrades" if upgraded else "new files"] += 1
                asyncio.run(self._check(number, path, upgraded))
                if number <= self._run.size:
                    self._run.advance()
        finally:
            self._spare.close()

    def _kill_one(self, number: int, path: Path) -> None:
        plan = Plan(url=str(path), process=f"b{number}", number=number, seed=number)
        with self._spare.go(plan) as child:
            self._spare = Child()
            child.listen(lambda line: b'"opening"' in line)
            # Most of the work of opening is done soon, unless the machine is busy.
            time.sleep(0.03 * self._random.random() ** 3)
            child.kill()
        self._run.facts[EARLY] += not any(b'"open"' in line for line in child.lines)

    async def _check(self, number: int, path: Path, upgraded: bool) -> None:
        """The next owner finds the whole schema, and in an old file all that it held."""
        where = f"birth {number}"
        storage = open_storage(str(path))
        try:
            tokens = {row.token for row in (await take(storage, "old")).rollouts.values()}
            if upgraded and tokens != self._tokens:
                self._run.found(where, [f"{len(self._tokens - tokens)} old rollouts are gone"])
            self._run.found(where, await storage.read(damaged_pages))
            store = store_over(storage, "default", 60.0)
            await store.start_rollout({"token": "after"}, worker_id="after")
        finally:
            await storage.close()
        self._run.found(where, missing(path))
        for file in path.parent.glob(path.name + "*"):
            file.unlink()


async def make_old_file(path: Path) -> set[str]:
    """A file as an older release left it: with rollouts, and without what came later; gives their tokens."""
    tokens = {f"old-{number}" for number in range(OLD_ROLLOUTS)}
    storage = open_storage(str(path))
    store = store_over(storage, "old", 60.0)
    for token in sorted(tokens):
        await store.enqueue_rollout({"token": token})
    await store.close()
    connection = apsw.Connection(str(path))
    # SQLite drops no column that a view reads.
    for view in Schema(TABLES).views:
        connection.execute("DROP VIEW " + view.name)
    for table in map(Schema(TABLES).tables.get, NEWER_COLUMNS):
        assert table is not None
        for index in table.indexes:
            connection.execute("DROP INDEX " + index.name)
        for column in NEWER_COLUMNS[table.name]:
            connection.execute("ALTER TABLE " + table.name + " DROP COLUMN " + column)
    for name in NEWER_TABLES:
        connection.execute("DROP TABLE " + name)
    connection.close()
    return tokens


def missing(path: Path) -> list[str]:
    """The columns, indexes and views that the file lacks."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema").fetchall()}
        schema = Schema(TABLES)
        wanted = [index.name for _, index in schema.indexes()] + [view.name for view in schema.views]
        lacking = [name for name in wanted if name not in names]
        return lacking + [each for table in TABLES for each in _missing_columns(connection, table)]
    finally:
        connection.close()


def _missing_columns(connection: apsw.Connection, table: Table) -> list[str]:
    present = {row[1] for row in connection.execute("PRAGMA table_info(" + table.name + ")").fetchall()}
    return [f"{table.name}.{column}" for column in table.names if column not in present]


def kill_at_birth(run: Run) -> None:
    Births(run).kill_all()
