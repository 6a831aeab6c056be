"""Our side of every measure: the stores, opened as a user opens them."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import perdure
from bench import seed, work
from bench.host import Host
from bench.http_servers import Engine
from bench.timing import milliseconds
from perdure import LightningStore, PostgresLightningStore, SqliteLightningStore

KIT = SimpleNamespace(
    Span=perdure.Span,
    TraceStatus=perdure.TraceStatus,
    OtelResource=perdure.OtelResource,
    EnqueueRolloutRequest=perdure.EnqueueRolloutRequest,
)
SPANS_A_ROLLOUT = 100
WARM_CLAIMS = 5


async def new_place(host: Host, engine: Engine) -> str:
    """Return a new file's path or a new database's URL."""
    return str(host.new_file()) if engine == "sqlite" else await host.new_database()


def open_store(engine: Engine, place: str) -> LightningStore:
    return SqliteLightningStore(place) if engine == "sqlite" else PostgresLightningStore(place)


@asynccontextmanager
async def new_store(host: Host, engine: Engine) -> AsyncIterator[LightningStore]:
    async with open_store(engine, await new_place(host, engine)) as store:
        yield store


async def rate(host: Host, name: str, size: int) -> float:
    """Run one round of a work on a new SQLite file."""
    async with new_store(host, "sqlite") as store:
        return await work.RATES[name](store, KIT, size)


async def seeded_for_queries(host: Host, engine: Engine, stack: AsyncExitStack) -> dict[int, LightningStore]:
    """Open a store for each number of rollouts."""
    stores = {}
    for size in host.sizes.rollouts:
        place = await new_place(host, engine)
        stores[size] = await stack.enter_async_context(open_store(engine, place))
        await work.seed_queries(stores[size], KIT, size)
        if engine == "postgres":
            await seed.settle_postgres(place)
    return stores


async def claim_times(host: Host, engine: Engine) -> tuple[float, float]:
    """Return median milliseconds of a claim: from a short queue, and from a deep one with blocked lines."""
    shallow, deep = await new_place(host, engine), await new_place(host, engine)
    async with open_store(engine, shallow) as store:
        await work.fill(store, KIT, host.sizes.pending)
    await seed_lines(engine, deep, host.sizes.lines)
    if engine == "postgres":
        await seed.settle_postgres(shallow)
        await seed.settle_postgres(deep)
    taken: dict[str, list[float]] = {shallow: [], deep: []}
    async with open_store(engine, shallow) as one, open_store(engine, deep) as other:
        for _ in range(WARM_CLAIMS + host.sizes.claim_samples):
            taken[shallow].append(await claim_time(one))
            taken[deep].append(await claim_time(other))
    return median(taken[shallow][WARM_CLAIMS:]), median(taken[deep][WARM_CLAIMS:])


async def claim_time(store: LightningStore) -> float:
    started = time.perf_counter()
    claimed = await store.dequeue_rollout()
    taken = (time.perf_counter() - started) * 1000
    if claimed is None:
        raise RuntimeError("the queue ran dry before the samples were taken")
    return taken


async def seed_lines(engine: Engine, place: str, lines: int) -> None:
    """Insert ten pending rollouts in each line; a running rollout blocks 9 of 10 lines."""
    async with open_store(engine, place) as store:
        running, queued = await seed.make_templates(store, KIT)
    if engine == "postgres":
        await seed.seed_postgres_lines(place, running, queued, lines)
        return
    seeder = seed.SqliteSeeder(Path(place))
    seeder.seed_lines(running, queued, lines)
    seeder.close()


async def waiting(host: Host, engine: Engine) -> tuple[float, float]:
    """Return extra threads while all wait, and milliseconds to wake. PostgreSQL has a second store."""
    place = await new_place(host, engine)
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(open_store(engine, place))
        shared = engine == "sqlite"
        other = one if shared else await stack.enter_async_context(open_store(engine, place))
        await work.wake_up(one, other, KIT, work.BATCH)
        before = threading.active_count()
        seen = [await work.wake_up(one, other, KIT, host.sizes.waited) for _ in range(host.sizes.rounds)]
    return float(max(threads for threads, _ in seen) - before), median(latency for _, latency in seen)


async def build_large_file(host: Host) -> Path:
    """Create a store's file with this number of spans, 100 in each rollout."""
    path = host.new_file()
    rollouts = host.sizes.stored_spans // SPANS_A_ROLLOUT
    async with SqliteLightningStore(path) as store:
        for start in range(0, rollouts, 500):
            numbers = range(start, min(start + 500, rollouts))
            begun = await asyncio.gather(*(store.start_rollout(work.task_input(n)) for n in numbers))
            spans = [work.make_span(KIT, one.rollout_id, one.attempt.attempt_id, 1) for one in begun]
            await store.add_many_spans(spans)
    seeder = seed.SqliteSeeder(path)
    seeder.multiply_spans(SPANS_A_ROLLOUT - 1)
    seeder.close()
    return path


async def opening(host: Host) -> tuple[float, float]:
    """Return milliseconds to open a large file, and then to list its newest rollouts for the first time."""
    path = await build_large_file(host)
    opened, listed = [], []
    for _ in range(host.sizes.rounds):
        started = time.perf_counter()
        async with SqliteLightningStore(path) as store:
            opened.append((time.perf_counter() - started) * 1000)
            listed.append(await work.newest(store, times=1))
    return median(opened), median(listed)


async def import_time(host: Host) -> float:
    """Return median milliseconds of a whole process that imports the package and ends."""

    async def once() -> None:
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", "import perdure"], check=True)

    await once()
    return median([await milliseconds(once) for _ in range(host.sizes.imports)])
