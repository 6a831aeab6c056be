"""Fast creation of large stores: rows that a store wrote itself, copied many times by our own connection.

This module knows only the columns that it changes, so the tables may grow without a change here.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from bench.work import make_span, task_input

PENDING_A_LINE = 10
FREE_SHARE = 10
CHUNK = 10_000

Row = dict[str, Any]


async def make_templates(store: Any, kit: Any) -> tuple[str, str]:
    """Let the store write one running and one queued rollout; return their ids."""
    running = await store.start_rollout(task_input(0))
    await store.add_span(make_span(kit, running.rollout_id, running.attempt.attempt_id, 1))
    queued = await store.enqueue_rollout(task_input(1))
    return running.rollout_id, queued.rollout_id


def line_rows(running: Row, queued: Row, lines: int) -> Iterator[tuple[str, Row]]:
    """Build ten queued rollouts per line; one line in ten is free, a running rollout holds the others."""
    for line in range(lines):
        name, free = f"line-{line:06d}", line % FREE_SHARE == 0
        if not free:
            yield "rollouts", {**running, "id": f"ro-run{line:06d}", "line": name}
        for place in range(PENDING_A_LINE):
            position = queued["position"] + place * lines + line
            head = free and place == 0
            spot = {"ready": position if head else None, "behind": None if head else position}
            yield (
                "rollouts",
                {**queued, "id": rollout_id(line, place), "line": name, "position": position, **spot},
            )
        holder = rollout_id(line, 0) if free else f"ro-run{line:06d}"
        yield "lines", {"ns": queued["ns"], "line": name, "holder": holder}


def rollout_id(line: int, place: int) -> str:
    return f"ro-{line:08d}{place:04d}"


class SqliteSeeder:
    """Direct access to a SQLite file that no store has open."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute("PRAGMA synchronous = OFF").fetchall()

    def seed_lines(self, running_id: str, queued_id: str, lines: int) -> None:
        running, queued = self._take(running_id), self._take(queued_id)
        self._connection.execute("DELETE FROM rollouts WHERE id = ?", (queued_id,))
        self.insert(line_rows(running, queued, lines))

    def multiply_spans(self, copies: int) -> None:
        """Copy every stored span `copies` times with other span and sequence ids."""
        columns = [row[1] for row in self._connection.execute("PRAGMA table_info(spans)")]
        changed = {
            "span_id": "printf('%016x', spans.sequence_id + n)",
            "sequence_id": "spans.sequence_id + n",
        }
        chosen = ", ".join(changed.get(column, f"spans.{column}") for column in columns)
        self._connection.execute(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "
            f"INSERT INTO spans ({', '.join(columns)}) SELECT {chosen} FROM spans CROSS JOIN numbers",
            (copies,),
        )

    def close(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._connection.close()

    def _take(self, rollout: str) -> Row:
        cursor = self._connection.execute("SELECT * FROM rollouts WHERE id = ?", (rollout,))
        names = [column[0] for column in cursor.get_description()]
        return dict(zip(names, cursor.fetchall()[0], strict=True))

    def insert(self, rows: Iterable[tuple[str, Row]]) -> None:
        with self._connection:
            for table, records in chunks(rows):
                columns = list(records[0])
                marks = ", ".join("?" * len(columns))
                self._connection.executemany(
                    f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})",
                    [tuple(record.values()) for record in records],
                )

    def rows_of(self, table: str) -> list[Row]:
        names = [row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")]
        rows = self._connection.execute(f"SELECT {', '.join(names)} FROM {table}")
        return [dict(zip(names, row, strict=True)) for row in rows]


def chunks(rows: Iterable[tuple[str, Row]]) -> Iterator[tuple[str, list[Row]]]:
    """Split rows into large parts, each of one table."""
    pending = iter(rows)
    while chunk := list(islice(pending, CHUNK)):
        for table in dict.fromkeys(name for name, _ in chunk):
            yield table, [row for name, row in chunk if name == table]


async def seed_postgres_lines(dsn: str, running_id: str, queued_id: str, lines: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        taken = [
            await connection.fetchrow("SELECT * FROM rollouts WHERE id = $1", one)
            for one in (running_id, queued_id)
        ]
        running, queued = (dict(row) for row in taken if row is not None)
        await connection.execute("DELETE FROM rollouts WHERE id = $1", queued_id)
        await copy_into(connection, line_rows(running, queued, lines))
    finally:
        await connection.close()


async def copy_into(connection: Any, rows: Iterable[tuple[str, Row]]) -> None:
    for table, records in chunks(rows):
        values = [tuple(record.values()) for record in records]
        await connection.copy_records_to_table(table, columns=list(records[0]), records=values)


async def settle_postgres(dsn: str) -> None:
    """Run the work that autovacuum would do within its next minute."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()
