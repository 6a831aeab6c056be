"""SQLite's raw limit: handwritten group commit, with nothing else between the callers and the engine.

Ids and JSON are created while the clock runs, as in ours.
"""

import asyncio
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import apsw
import msgspec

from bench.timing import spread
from bench.work import BATCH, BATCH_CALLERS, CALLERS, task_input

SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE queue (id TEXT PRIMARY KEY, status TEXT NOT NULL, position INTEGER, payload TEXT NOT NULL);
CREATE INDEX queue_ready ON queue (position) WHERE position IS NOT NULL;
"""
INSERT = "INSERT INTO queue (id, status, position, payload) VALUES (?, ?, ?, ?)"

CLAIM = """
UPDATE queue SET status = 'running', position = NULL
WHERE id = (SELECT id FROM queue WHERE position IS NOT NULL ORDER BY position LIMIT 1) RETURNING id, payload
"""
COMPLETE = "UPDATE queue SET status = 'succeeded' WHERE id = ?"

Row = tuple[str, str, int, str]
Work = Callable[[apsw.Connection], Any]
Call = tuple[list[Row] | Work, asyncio.Future[Any]]


def make_row(number: int) -> Row:
    return f"ro-{secrets.token_hex(6)}", "queuing", number, msgspec.json.encode(task_input(number)).decode()


class GroupCommit:
    """One writer thread; works queued during a commit form its next transaction."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._connection = apsw.Connection(str(path))
        self._connection.execute(SCHEMA).fetchall()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    async def insert(self, rows: list[Row]) -> None:
        await self._call(rows)

    async def do(self, work: Work) -> Any:
        """Do a work in the next transaction, and return its result."""
        return await self._call(work)

    async def _call(self, wanted: list[Row] | Work) -> Any:
        done = self._loop.create_future()
        self._calls.put((wanted, done))
        return await done

    async def close(self) -> None:
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join)
        self._connection.close()

    def _write(self) -> None:
        while (first := self._calls.get()) is not None:
            group = [first]
            for _ in range(self._calls.qsize()):
                if (call := self._calls.get()) is None:
                    return
                group.append(call)
            self._commit(group)

    def _commit(self, group: list[Call]) -> None:
        error: apsw.Error | None = None
        given: list[Any] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            rows = [row for wanted, _ in group if isinstance(wanted, list) for row in wanted]
            if rows:
                self._connection.executemany(INSERT, rows)
            given = [None if isinstance(wanted, list) else wanted(self._connection) for wanted, _ in group]
            self._connection.execute("COMMIT")
        except apsw.Error as failed:
            error = failed
        self._loop.call_soon_threadsafe(_answer, group, given, error)


def _answer(group: list[Call], given: list[Any], error: apsw.Error | None) -> None:
    for number, (_, done) in enumerate(group):
        if error:
            done.set_exception(error)
        else:
            done.set_result(given[number])


async def enqueue(path: Path, size: int) -> float:
    return await _insert(path, 1, size, CALLERS)


async def enqueue_many(path: Path, size: int) -> float:
    return BATCH * await _insert(path, BATCH, max(size // BATCH, 1), BATCH_CALLERS)


async def _insert(path: Path, rows: int, calls: int, callers: int) -> float:
    raw = GroupCommit(path)

    async def call(number: int) -> None:
        await raw.insert([make_row(number * rows + one) for one in range(rows)])

    rate = await spread(callers, calls, call)
    await raw.close()
    return rate


async def runs(path: Path, size: int, callers: int) -> float:
    """Do the minimum of a run: store, claim and complete a row, each acknowledged separately."""
    raw = GroupCommit(path)

    async def call(number: int) -> None:
        await raw.insert([make_row(number)])
        claimed, payload = await raw.do(_claim)
        msgspec.json.decode(payload)
        await raw.do(lambda connection: connection.execute(COMPLETE, (claimed,)).fetchall())

    rate = await spread(callers, size, call)
    await raw.close()
    return rate


def _claim(connection: apsw.Connection) -> Any:
    return connection.execute(CLAIM).fetchall()[0]
