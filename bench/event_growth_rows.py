"""Streams with 1,000 and with 1,000,000 events: reading and appending must not take longer."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import apsw
import asyncpg

from bench import ours, seed
from bench.host import Host
from bench.http_servers import ENGINES, Engine
from bench.measures import Figures, Measure, Row
from bench.seed_threads import register
from bench.sizes import Sizes, label
from bench.timing import growth
from perdure import Perdure
from perdure.runs.queue import RunQueue
from perdure.streams.model import NewEvent
from perdure.streams.operations import read
from perdure.threads.operations.settle import thread_stream
from perdure.threads.records import RunRequest

MOST = 1.5
FEW = 1_000
TAIL = 100
A_BATCH = 100
"""Events per append of an agent: a thread's stream has a link to each batch."""
EVENT = NewEvent("custom", '{"token":" evening","index":1234}')
WHAT = {
    "tail": f"the last {TAIL} events of a run",
    "page": f"{TAIL} events from the middle of a run",
    "joined": f"the last {TAIL} events of a thread",
    "append": "append of an event",
}
NUMBERS = {
    "sqlite": "(WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {0})"
    " SELECT n FROM c)",
    "postgres": "generate_series(1, {0})",
}
FILL = (
    "INSERT INTO stream_events (ns, stream, seq, ms, attempt, event, body)"
    " SELECT t.ns, t.stream, t.seq + s.n, t.ms, t.attempt, t.event, t.body FROM"
    " (SELECT * FROM stream_events ORDER BY seq DESC LIMIT 1) AS t CROSS JOIN {events} AS s",
    "INSERT INTO stream_links (ns, stream, seq, ms, source, source_seq, count)"
    " SELECT t.ns, t.stream, t.seq + t.count + (s.n - 1) * {batch}, t.ms, t.source,"
    " t.source_seq + t.count + (s.n - 1) * {batch}, {batch} FROM"
    " (SELECT * FROM stream_links ORDER BY seq DESC LIMIT 1) AS t CROSS JOIN {batches} AS s",
    "UPDATE streams SET last_seq = last_seq + {count}",
)


def measures(sizes: Sizes) -> list[Measure]:
    few, many = label(FEW), label(sizes.grown_events)
    return [
        Measure(
            tuple(
                Row(
                    f"events/{engine}_{name}_growth",
                    f"{what}: {many} / {few} events",
                    "times",
                    "lower",
                    target=MOST,
                )
                for name, what in WHAT.items()
            ),
            partial(_figures, engine=engine, few=FEW, many=sizes.grown_events),
        )
        for engine in ENGINES
    ]


async def _figures(host: Host, engine: Engine, few: int, many: int) -> list[Figures]:
    async with AsyncExitStack() as stack:
        small = await _calls(host, engine, few, stack)
        large = await _calls(host, engine, many, stack)
        return [{"ours": await growth(small[name], large[name], host.sizes.queries)} for name in WHAT]


async def _calls(
    host: Host, engine: Engine, count: int, stack: AsyncExitStack
) -> Mapping[str, Callable[[], Awaitable[Any]]]:
    """Measure a running run with this number of events."""
    place = await ours.new_place(host, engine)
    url = f"sqlite:///{place}" if engine == "sqlite" else place
    async with Perdure(url, watchdog_interval=None) as perdure:
        await register(perdure)
        thread = await perdure.threads.create_thread()
        await perdure.threads.create_run(RunRequest(assistant_id="noop", thread_id=thread.thread_id))
        (claimed,) = await RunQueue.beside(perdure.threads).claim("bench", ["noop"], 1, 0.0)
        await RunQueue.beside(perdure.threads).append(claimed.held, [EVENT])
    await _fill(engine, place, count // A_BATCH * A_BATCH)
    perdure = await stack.enter_async_context(Perdure(url, watchdog_interval=None))
    queue, storage, ns = RunQueue.beside(perdure.threads), perdure.threads.storage, await perdure.threads.ns()
    run, whole = claimed.run.run_id, thread_stream(thread.thread_id)
    reads = {
        "tail": partial(storage.read, read, run, count - TAIL, TAIL, ns=ns),
        "page": partial(storage.read, read, run, count // 2, TAIL, ns=ns),
        "joined": partial(storage.read, read, whole, count - TAIL, TAIL, True, ns=ns),
    }
    for each in reads.values():
        assert len((await each()).events) == TAIL
    return {**reads, "append": partial(queue.append, claimed.held, [EVENT])}


async def _fill(engine: Engine, place: str, count: int) -> None:
    """Copy the last event `count` times, in batches with links from the thread's stream."""
    numbers = NUMBERS[engine]
    chosen = {
        "events": numbers.format(count),
        "batches": numbers.format(count // A_BATCH),
        "batch": A_BATCH,
        "count": count,
    }
    texts = [text.format_map(chosen) for text in FILL]
    if engine == "sqlite":
        await asyncio.to_thread(_execute_sqlite, place, texts)
        return
    connection = await asyncpg.connect(place)
    try:
        for text in texts:
            await connection.execute(text.replace("s.n", "s"))
    finally:
        await connection.close()
    await seed.settle_postgres(place)


def _execute_sqlite(place: str, texts: list[str]) -> None:
    connection = apsw.Connection(place)
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    for text in [*texts, "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"]:
        connection.execute(text).fetchall()
    connection.close()
