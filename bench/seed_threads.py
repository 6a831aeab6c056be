"""Fast creation of threads with runs: a thread that the service created itself, copied with other ids.

This module does not know the tables. It copies every row with the id of the thread or of its runs in its key.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from bench.http_servers import Engine
from bench.seed import Row, SqliteSeeder, copy_into
from perdure import Perdure
from perdure.agents.records import AgentSpec
from perdure.runs.queue import RunQueue
from perdure.runtime.stores import TABLES
from perdure.threads.records import RunRequest

AGENT = "noop"
WORKER = "bench"
ORDERED = ("position", "ready", "behind", "created_at", "start_time")
"""Columns with a separate value for each copy, so that copies have an order."""
LEASES = ("check_at",)
LONG = 3_600_000_000
"""An hour in microseconds, so that no lease expires during a measure."""

Template = list[tuple[str, Row]]


async def make_thread(perdure: Perdure, thread_id: str, runs: int, *, held: bool) -> list[str]:
    """Create a thread with waiting runs, behind a running one if it is `held`. Return all ids."""
    threads = perdure.threads
    ids = [(await threads.create_thread(thread_id)).thread_id]
    if held:
        ids.append((await threads.create_run(_request(thread_id))).run_id)
        (taken,) = await RunQueue.beside(threads).claim(WORKER, [AGENT], 1, 0.0)
        assert taken.run.thread_id == thread_id
    ids += [(await threads.create_run(_request(thread_id))).run_id for _ in range(runs)]
    return ids


async def register(perdure: Perdure) -> None:
    await RunQueue.beside(perdure.threads).register(WORKER, [AgentSpec(name=AGENT)])


def _request(thread_id: str) -> RunRequest:
    return RunRequest(assistant_id=AGENT, thread_id=thread_id, multitask_strategy="enqueue")


def template_of(rows: Iterable[tuple[str, Row]], ids: Sequence[str]) -> Template:
    """Return the rows of a thread: one of its ids is in their key."""
    wanted = set(ids) | {f"thread/{each}" for each in ids}
    keys = {table.name: table.key for table in TABLES}
    return [(name, row) for name, row in rows if any(row[column] in wanted for column in keys[name])]


def copies(template: Template, ids: Sequence[str], numbers: Iterable[int]) -> Iterator[tuple[str, Row]]:
    """Copy the template once for each number, with its own ids and order."""
    for number in numbers:
        renamed = {each: f"{each}-{number}" for each in ids}
        renamed |= {f"thread/{each}": f"thread/{new}" for each, new in renamed.items()}
        for table, row in template:
            yield table, {name: _copied(name, value, renamed, number) for name, value in row.items()}


def _copied(name: str, value: Any, renamed: dict[str, str], number: int) -> Any:
    if isinstance(value, str):
        return renamed.get(value, value)
    if value is None:
        return None
    if name in ORDERED:
        return value + number
    return value + LONG if name in LEASES else value


async def multiply(engine: Engine, place: str, threads: Sequence[tuple[list[str], int]]) -> None:
    """Copy threads, given by their ids, in a database that no process has open."""
    names = [table.name for table in TABLES]
    if engine == "sqlite":
        seeder = SqliteSeeder(Path(place))
        rows = [(name, row) for name in names for row in seeder.rows_of(name)]
        seeder.insert(_all_copies(rows, threads))
        seeder.close()
        return
    connection = await asyncpg.connect(place)
    try:
        stored = {name: await connection.fetch(f"SELECT * FROM {name}") for name in names}
        rows = [(name, dict(row)) for name in names for row in stored[name]]
        await copy_into(connection, _all_copies(rows, threads))
    finally:
        await connection.close()


def _all_copies(rows: Template, threads: Sequence[tuple[list[str], int]]) -> Iterator[tuple[str, Row]]:
    for ids, count in threads:
        yield from copies(template_of(rows, ids), ids, range(1, count))
