"""Lists as the dashboard requests them, with many rollouts, runs and spans; and the cost of an idle page."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import apsw
import asyncpg

from bench import ours, seed
from bench.cpu import seconds_of
from bench.host import Host
from bench.http_servers import ENGINES, SERVE, START_SECONDS, Engine, running
from bench.measures import Figures, Measure, Row
from bench.seed_threads import register
from bench.sizes import Sizes, label
from perdure import Perdure, Span
from perdure.runs.queue import RunQueue
from perdure.testing.serving import ServerProcess
from perdure.threads.records import NewCheckpoint, RunRequest
from perdure.threads.work import Ending

MOST_MS = 200.0
MOST_IDLE = 1.0
SPANS_A_ROLLOUT = 10
STATE = {"answer": "The weather will stay fine until the evening."}
TIMES = 3
LISTS: Mapping[str, str] = {
    "rollouts": "rollouts?limit=50",
    "rollouts_failed": "rollouts?limit=50&status=failed",
    "rollouts_named": "rollouts?limit=50&contains=77",
    "runs": "runs?limit=50",
    "runs_failed": "runs?limit=50&status=error",
    "threads": "threads?limit=50",
    "traces": "traces?limit=50",
    "traces_errors": "traces?limit=50&error=true",
    "traces_named": "traces?limit=50&name=step",
    "workers": "workers?limit=50",
    "outbox": "outbox?limit=50",
    "audit": "audit?limit=50",
    "statistics": "statistics",
    "queues": "queues",
    "stats": "stats",
    "stats_queues": "stats/queues",
    "stats_usage": "stats/usage",
    "find": "find?q=ro-1",
}
"""Requests of the dashboard's screens, by the name of the row."""
IDLE = (("queues", 5.0), ("stats", 5.0), ("stats/queues", 60.0), ("stats/usage", 60.0))
"""Requests that Home repeats while nothing happens, with their intervals in seconds."""
COPIED = {
    "rollouts": ("id", "line", "position", "start_time", "end_time"),
    "attempts": ("rollout_id", "id", "start_time", "end_time", "born"),
    "spans": ("rollout_id", "attempt_id", "trace_id", "born"),
    "span_counters": ("rollout_id",),
    "rollout_figures": ("rollout_id",),
    "traces": ("trace_id", "rollout_id", "start_ns", "end_ns"),
    "trace_names": ("trace_id", "start_ns"),
    "threads": ("id", "created_at", "updated_at"),
    "runs": ("id", "thread_id", "created_at", "updated_at"),
}
"""The copied tables, and the columns with a separate value for each copy."""
COUNT_UP = (
    "UPDATE rollout_counts SET total = total * ?",
    "UPDATE rollout_totals SET total = total * ?",
)

TEXTS = frozenset(
    ("id", "line", "rollout_id", "attempt_id", "trace_id", "thread_id", "run_id", "object", "stream")
)
"""Text columns, in which each copy ends with its number."""
Copied = Mapping[str, Sequence[str]]


def measures(sizes: Sizes) -> list[Measure]:
    count = sizes.rollouts[-1]
    what = f"{label(count)} rollouts and {label(count * SPANS_A_ROLLOUT)} spans"
    return [
        Measure(
            (
                *(
                    Row(f"lists/{engine}_{name}", f"GET {path}, {what}", "ms", "lower", target=MOST_MS)
                    for name, path in LISTS.items()
                ),
                Row(
                    f"lists/{engine}_idle_page",
                    "CPU of a server with one idle page, of a core",
                    "%",
                    "lower",
                    target=MOST_IDLE,
                ),
            ),
            partial(_figures, engine=engine, count=count),
        )
        for engine in ENGINES
    ]


async def _figures(host: Host, engine: Engine, count: int) -> list[Figures]:
    place = await ours.new_place(host, engine)
    url = f"sqlite:///{place}" if engine == "sqlite" else place
    async with Perdure(url, watchdog_interval=None) as perdure:
        await make_templates(perdure)
    await multiply(engine, place, count // 2)
    server = ServerProcess((*SERVE, url), start_seconds=START_SECONDS)
    async with running(server), aiohttp.ClientSession() as session:
        found = [await _list_ms(session, f"{server.url}/api/v1/{path}") for path in LISTS.values()]
        found.append(await _idle(session, server, 20.0 if host.sizes.rounds > 1 else 1.0))
    return [{"ours": each} for each in found]


async def make_templates(perdure: Perdure, metadata: dict[str, Any] | None = None) -> dict[str, str]:
    """Create a failed rollout and an ended run, each with spans. Return the ids of the run."""
    store, queue = perdure.store, RunQueue.beside(perdure.threads)
    started = await store.start_rollout({"question": 1})
    await store.add_many_spans(_spans(started.rollout_id, started.attempt.attempt_id, "1"))
    await store.update_attempt(started.rollout_id, "latest", status="failed")
    await register(perdure)
    thread = await perdure.threads.create_thread(metadata=metadata)
    run = await perdure.threads.create_run(RunRequest(assistant_id="noop", thread_id=thread.thread_id))
    (claimed,) = await queue.claim("bench", ["noop"], 1, 0.0)
    await store.add_many_spans(_spans(run.run_id, claimed.held.attempt_id, "2"))
    await queue.finish(Ending(held=claimed.held, result="success", checkpoint=NewCheckpoint(values=STATE)))
    return {"thread": thread.thread_id, "run": run.run_id}


def _spans(rollout_id: str, attempt_id: str, trace: str) -> list[Span]:
    return [
        Span.from_attributes(
            attributes={"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 10},
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=number,
            name="step",
            trace_id=trace * 32,
            span_id=f"{number:016x}",
            parent_id=None if number == 1 else f"{1:016x}",
        )
        for number in range(1, SPANS_A_ROLLOUT + 1)
    ]


# --- many rows --------------------------------------------------------------------------------------------


async def multiply(engine: Engine, place: str, copies: int, copied: Copied = COPIED) -> None:
    """Copy every row of these tables `copies` times, and update the stored counts of rollouts."""
    if engine == "sqlite":
        await asyncio.to_thread(_multiply_sqlite, Path(place), copies, copied)
        return
    connection = await asyncpg.connect(place)
    try:
        for table, changed in copied.items():
            rows = await connection.fetch(
                "SELECT column_name FROM information_schema.columns WHERE table_name = $1", table
            )
            names = [row["column_name"] for row in rows]
            await connection.execute(
                f"INSERT INTO {table} ({', '.join(names)}) SELECT {_chosen(names, changed, 'postgres')} "
                f"FROM {table} AS t CROSS JOIN generate_series(1, {copies}) AS n"
            )
        for text in COUNT_UP:
            await connection.execute(text.replace("?", "$1::int"), copies + 1)
    finally:
        await connection.close()
    await seed.settle_postgres(place)


def _multiply_sqlite(path: Path, copies: int, copied: Copied) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -500000").fetchall()
    for table, changed in copied.items():
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.execute(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers "
            f"WHERE n < {copies}) "
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {_chosen(names, changed, 'sqlite')} "
            f"FROM {table} AS t CROSS JOIN numbers"
        )
    for text in COUNT_UP:
        connection.execute(text, (copies + 1,))
    connection.execute("ANALYZE").fetchall()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


def _chosen(names: Sequence[str], changed: Sequence[str], engine: Engine) -> str:
    """Build the columns of a copy: a text ends with its number, a time or a position is later by it."""
    number = "n" if engine == "sqlite" else "n::text"
    return ", ".join(
        f"t.{name}"
        if name not in changed
        else f"t.{name} || '-' || {number}"
        if name in TEXTS
        else f"t.{name} + n"
        for name in names
    )


# --- what is measured -------------------------------------------------------------------------------------


async def _list_ms(session: aiohttp.ClientSession, url: str) -> float:
    """Return the median of some calls, including the first one with cold caches."""
    taken = []
    for _ in range(TIMES):
        started = time.perf_counter()
        async with session.get(url) as response:
            response.raise_for_status()
            await response.read()
        taken.append((time.perf_counter() - started) * 1000)
    return median(taken)


async def _idle(session: aiohttp.ClientSession, server: ServerProcess, seconds: float) -> float:
    """Return the percentage of a core while one page follows the changes and reloads Home."""
    following = asyncio.create_task(_follow(session, f"{server.url}/api/v1/changes"))
    try:
        await asyncio.sleep(1.0)
        began, started = seconds_of(server.pid), time.monotonic()
        asking = [_ask_again(session, f"{server.url}/api/v1/{path}", every, seconds) for path, every in IDLE]
        await asyncio.gather(*asking)
        return (seconds_of(server.pid) - began) * 100 / (time.monotonic() - started)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def _follow(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as response:
        async for _ in response.content:
            pass


async def _ask_again(session: aiohttp.ClientSession, url: str, every: float, seconds: float) -> Any:
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        await asyncio.sleep(min(every, end - now))
        if time.monotonic() < end:
            async with session.get(url) as response:
                await response.read()
