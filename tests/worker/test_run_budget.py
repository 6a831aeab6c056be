"""Cost of a single run in its database: statements on PostgreSQL, transactions on SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asyncpg.connection import Connection

from perdure import Agents, Perdure
from perdure.kernel.signals.postgres import NOTIFY
from perdure.kernel.storage.sqlite_engine import SqliteEngine, WriterJob
from perdure.service.callers import Caller
from perdure.threads.records import RunRequest
from perdure.threads.service import Threads

STATEMENTS = 26
"""On PostgreSQL, from the creation of the thread to the end of the run, with BEGIN and COMMIT."""
TRANSACTIONS = 3
"""A thread is created; a run is created and claimed; the run ends."""
OF_RUNS = {"create_threads", "create_runs", "claim_at_once", "claim_runs", "finish_runs"}
RUNS = 10

agents = Agents()


@agents.agent("noop")
async def noop(ctx: Any, input: Any) -> Any:
    return input


async def _lone_run(threads: Threads, number: int) -> None:
    """Execute a run on a new thread, as a caller of the server does."""
    thread = await threads.create_thread()
    request = RunRequest(assistant_id="noop", thread_id=thread.thread_id, input={"number": number})
    end = await threads.wait(request)
    assert end.values == {"number": number}


@asynccontextmanager
async def _working_on(url: str) -> AsyncIterator[Threads]:
    """Return the threads of a caller, with a worker that has executed a few runs."""
    async with Perdure(url, agents=agents, jobs_per_worker=16, trace_sample=0.0) as perdure:
        threads = perdure.threads.acting_as(Caller.trusted("somebody"))
        for number in range(5):
            await _lone_run(threads, number)
        yield threads


async def test_a_lone_run_asks_few_statements_of_postgres(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(name: str) -> Any:
        ask = getattr(Connection, name)

        async def noted(self: Any, query: str, *args: Any, **options: Any) -> Any:
            if query != NOTIFY:
                asked.append(query)
            return await ask(self, query, *args, **options)

        return noted

    async with _working_on(database_url) as threads:
        for name in ("execute", "fetch", "fetchrow", "fetchval", "executemany"):
            monkeypatch.setattr(Connection, name, counted(name))
        counts = []
        for number in range(RUNS):
            asked.clear()
            await _lone_run(threads, number)
            counts.append(len(asked))
    # Timers run statements too, and some runs are created before the worker waits again.
    assert min(counts) <= STATEMENTS, asked


async def test_a_lone_run_takes_three_transactions_on_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[set[str]] = []
    commit = SqliteEngine.commit_group

    def noted(self: SqliteEngine, jobs: list[WriterJob]) -> Any:
        names = {getattr(each, "__name__", "") for job in jobs for each in (job.operation, *job.args)}
        groups.append(names & OF_RUNS)
        return commit(self, jobs)

    async with _working_on(f"sqlite:///{tmp_path}/runs.db") as threads:
        monkeypatch.setattr(SqliteEngine, "commit_group", noted)
        counts = []
        for number in range(RUNS):
            groups.clear()
            await _lone_run(threads, number)
            counts.append(sum(1 for names in groups if names))
    assert min(counts) == TRANSACTIONS
