"""SQLite's raw limit: group commit by hand, with nothing else between the callers and the engine.

All values are made before the clock starts.
"""

import asyncio
import json
import secrets
import threading
from pathlib import Path
from queue import SimpleQueue

import apsw

from bench.timing import spread
from bench.work import BATCH, BATCH_CALLERS, CALLERS, task_input

SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE queue (id TEXT PRIMARY KEY, status TEXT NOT NULL, position INTEGER, payload TEXT NOT NULL);
CREATE INDEX queue_ready ON queue (position) WHERE position IS NOT NULL;
"""
INSERT = "INSERT INTO queue (id, status, position, payload) VALUES (?, ?, ?, ?)"

Row = tuple[str, str, int, str]
Call = tuple[list[Row], asyncio.Future[None]]


def make_row(number: int) -> Row:
    return f"ro-{secrets.token_hex(6)}", "queuing", number, json.dumps(task_input(number))


class GroupCommit:
    """One writer thread; whatever queued while it committed is its next transaction."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._connection = apsw.Connection(str(path))
        self._connection.execute(SCHEMA).fetchall()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    async def insert(self, rows: list[Row]) -> None:
        done = self._loop.create_future()
        self._calls.put((rows, done))
        await done

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
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(INSERT, [row for rows, _ in group for row in rows])
            self._connection.execute("COMMIT")
        except apsw.Error as failed:
            error = failed
        self._loop.call_soon_threadsafe(_answer, group, error)


def _answer(group: list[Call], error: apsw.Error | None) -> None:
    for _, done in group:
        if error:
            done.set_exception(error)
        else:
            done.set_result(None)


async def enqueue(path: Path, size: int) -> float:
    return await _insert(path, [[make_row(number)] for number in range(size)], CALLERS)


async def enqueue_many(path: Path, size: int) -> float:
    batches = range(max(size // BATCH, 1))
    rows = [[make_row(batch * BATCH + one) for one in range(BATCH)] for batch in batches]
    return BATCH * await _insert(path, rows, BATCH_CALLERS)


async def _insert(path: Path, calls: list[list[Row]], callers: int) -> float:
    raw = GroupCommit(path)
    rate = await spread(callers, len(calls), lambda number: raw.insert(calls[number]))
    await raw.close()
    return rate
