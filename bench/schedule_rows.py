"""Schedules: cost of many waiting ones, lateness of due ones, and many due at once."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from bench.host import Host
from bench.http_servers import Engine
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes
from perdure.kernel.clock import MICROS
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import open_store
from perdure.schedules.job_target import JobTarget
from perdure.schedules.model import ScheduleTargets
from perdure.schedules.service import Schedules
from perdure.schedules.timer import ScheduleTimer
from perdure.service.namespaces import ensure_namespace

TARGETS = ScheduleTargets(JobTarget())
SPREAD = 10
"""Number of schedules due each second."""
CHUNK = 500
DELAYS = statement("SELECT fired_at - due_at FROM firings WHERE ns = :ns", row=int)
IDS = statement("SELECT id FROM schedules WHERE ns = :ns ORDER BY id")
PLACE = statement("UPDATE schedules SET next_at = :at, due_at = :at WHERE ns = :ns AND id = :id")
FIRED = statement("SELECT count(*) FROM firings WHERE ns = :ns", row=int)


def measures(sizes: Sizes) -> list[Measure]:
    made: list[Measure] = []
    engines: tuple[Engine, ...] = ("sqlite", "postgres")
    for engine in engines:
        waiting = f"{sizes.schedules} schedules of which none is due"
        made += [
            Measure(
                (Row(f"{engine}/schedules_idle", f"{waiting}: share of a core", "%", "lower", target=1.0),),
                partial(_idle, engine=engine, count=sizes.schedules, seconds=sizes.schedule_seconds),
            ),
            Measure(
                (
                    Row(
                        f"{engine}/schedules_delay",
                        f"{SPREAD} due each second of {sizes.schedules}: delay, p99",
                        "ms",
                        "lower",
                        target=100.0,
                    ),
                ),
                partial(_delay, engine=engine, count=sizes.schedules, seconds=sizes.schedule_seconds),
            ),
            Measure(
                (
                    Row(
                        f"{engine}/schedules_burst",
                        f"{sizes.due_at_once} due at one instant: until all have fired",
                        "s",
                        "lower",
                        target=5.0,
                    ),
                ),
                partial(_burst, engine=engine, count=sizes.due_at_once),
            ),
        ]
    return made


@asynccontextmanager
async def _opened(host: Host, engine: Engine, count: int) -> AsyncIterator[DatabaseLightningStore]:
    """Open a database with `count` schedules of jobs whose next firing is far away."""
    url = await host.new_database() if engine == "postgres" else str(host.new_file())
    store = open_store(url)
    try:
        await store.storage.run(ensure_namespace, "default")
        schedules = Schedules(store.storage, TARGETS)
        for start in range(0, count, CHUNK):
            numbers = range(start, min(start + CHUNK, count))
            made = (schedules.create_for("job", "0 0 1 1 *", payload={"job": "none"}) for _ in numbers)
            await asyncio.gather(*made)
        yield store
    finally:
        await store.close()


async def _place(tx: Tx, at: int, step: int) -> None:
    """Make the schedules due from a time on, `step` microseconds apart."""
    ids: Sequence[Any] = await tx.all(IDS)
    await tx.execute_many(
        PLACE, [{"ns": tx.ns, "id": row[0], "at": at + number * step} for number, row in enumerate(ids)]
    )


async def _delays(tx: Tx) -> list[int]:
    return await tx.all(DELAYS)


async def _fired(tx: Tx) -> int:
    return await tx.one(FIRED) or 0


async def _idle(host: Host, engine: Engine, count: int, seconds: float) -> list[Figures]:
    """Measure the CPU of this process while its scheduler waits."""
    async with _opened(host, engine, count) as store:
        timer = ScheduleTimer(store.storage, TARGETS)
        await timer.start()
        await asyncio.sleep(1.0)
        before = time.process_time()
        await asyncio.sleep(seconds)
        used = time.process_time() - before
        await timer.stop()
    return [{"ours": 100 * used / seconds}]


async def _delay(host: Host, engine: Engine, count: int, seconds: float) -> list[Figures]:
    async with _opened(host, engine, count) as store:
        first = (int(time.time()) + 2) * MICROS
        await store.storage.run(_place, first, MICROS // SPREAD, ns=1)
        timer = ScheduleTimer(store.storage, TARGETS)
        await timer.start()
        await asyncio.sleep(2 + seconds)
        await timer.stop()
        delays = sorted(await store.storage.read(_delays, ns=1))
    assert len(delays) >= SPREAD * (seconds - 1)
    return [{"ours": delays[int(len(delays) * 0.99)] / 1000}]


async def _burst(host: Host, engine: Engine, count: int) -> list[Figures]:
    async with _opened(host, engine, count) as store:
        at = int(time.time()) + 1
        await store.storage.run(_place, at * MICROS, 0, ns=1)
        timer = ScheduleTimer(store.storage, TARGETS)
        await timer.start()
        while await store.storage.read(_fired, ns=1) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        taken = time.time() - at
        await timer.stop()
    return [{"ours": taken}]
