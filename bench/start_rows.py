"""From requesting a run to its start in another process: by NOTIFY, by Redis, and by polling only."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from statistics import median
from typing import Any

from bench import agents
from bench.cpu import SETTLE_SECONDS, Meter, own_seconds, seconds_of_tree
from bench.host import Host
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes
from perdure import Perdure
from perdure.testing.servers import ServerFailed, free_port
from perdure.threads.records import RunRequest

POLL_SECONDS = 0.5
LOOK_SECONDS = 0.1
WARM_STARTS = 3
TARGET = 8.0
WORKER = (sys.executable, "-m", "perdure.cli", "worker", "--json", "--agents", agents.PATH, "--database")


def measures(sizes: Sizes) -> list[Measure]:
    what = "asking for a run to its start in another process, p50"
    rows = (
        (Row("start/notify", f"{what}, by NOTIFY", "ms", "lower", target=TARGET), _by_notify, sizes.starts),
        (Row("start/redis", f"{what}, by Redis", "ms", "lower", target=TARGET), _by_redis, sizes.starts),
        (
            Row(
                "start/poll",
                f"{what}, without signals, polled every {POLL_SECONDS * 1000:g} ms",
                "ms",
                "lower",
                target=POLL_SECONDS * 1000,
            ),
            _by_polling,
            sizes.polled_starts,
        ),
    )
    return [Measure((row,), partial(run, times=times)) for row, run, times in rows]


async def _by_notify(host: Host, times: int) -> list[Figures]:
    return [await _start_time(host, {}, times)]


async def _by_redis(host: Host, times: int) -> list[Figures]:
    settings = {"redis_url": await host.redis_url(), "redis_key_prefix": f"bench-{time.time_ns()}-"}
    return [await _start_time(host, settings, times)]


async def _by_polling(host: Host, times: int) -> list[Figures]:
    """Name a Redis that does not exist, so that no signal arrives."""
    settings = {"redis_url": f"redis://127.0.0.1:{free_port()}", "job_interval": str(POLL_SECONDS)}
    return [await _start_time(host, settings, times)]


async def _start_time(host: Host, settings: Mapping[str, str], times: int) -> Figures:
    """Return median milliseconds from creating a run to the first line of its agent, and CPU per run."""
    redis: dict[str, Any] = {name: each for name, each in settings.items() if name.startswith("redis")}
    url, database = await host.new_database(), await host.database_clock()
    async with worker_on(url, settings) as pid, Perdure(url, **redis) as perdure:
        worker = partial(seconds_of_tree, pid)
        meter = Meter({"worker": worker, "client": own_seconds, "database": database}, SETTLE_SECONDS)
        side = meter.around(partial(_starts, perdure))
        await side(WARM_STARTS)
        return {"ours": await side(times), **meter.figures()}


async def _starts(perdure: Perdure, times: int) -> float:
    return median([await _once(perdure) for _ in range(times)])


async def _once(perdure: Perdure) -> float:
    asked = time.time()
    run = await perdure.threads.create_run(RunRequest(assistant_id="begin"))
    while True:
        # Without signals, the end is polled.
        with suppress(TimeoutError):
            end = await perdure.threads.join_run(run.run_id, LOOK_SECONDS)
            return float(end.values["began"] - asked) * 1000


@asynccontextmanager
async def worker_on(url: str, settings: Mapping[str, str]) -> AsyncIterator[int]:
    """Run `perdure worker` on a database, from its readiness to its stop; yield its process."""
    variables = {f"PERDURE_{name.upper()}": value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        *WORKER, url, "--log-level", "error",
        env={**os.environ, **variables}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise ServerFailed("perdure worker did not start")
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
