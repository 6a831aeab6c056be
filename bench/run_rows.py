"""Runs of a native agent over HTTP: created on new threads and awaited, many at once and one by one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from statistics import median
from typing import Any

from bench import raw_postgres, raw_sqlite
from bench.cpu import SETTLE_SECONDS, Clock, Meter, own_seconds, seconds_of, seconds_of_tree, with_raw
from bench.host import Host
from bench.http_servers import ENGINES, Engine
from bench.measures import Figures, Measure, Row
from bench.run_servers import agent_server
from bench.sizes import Sizes, label
from bench.socket_client import Connection, SocketClient, request_to, socket_client
from bench.timing import Side, interleave, spread
from bench.work import HTTP_CALLERS
from perdure.testing.serving import ServerProcess

RATES = {"sqlite": 400.0, "postgres": 250.0}
CPU_MS = {"sqlite": 1.5, "postgres": None}
LONE_MS = {"sqlite": 6.0, "postgres": 10.0}
IDLE_TIMES = 1.5
IDLE_SECONDS = 30.0
"""The maximum wait of a claim."""
WARM = 10
MORE = 5
"""Factor of the raw engine's work, because it is done too fast."""
RAW = "raw: a row stored, claimed and completed"

RawRuns = Callable[[int, int], Awaitable[float]]
"""Does `size` runs by `callers` callers; returns runs per second."""


def measures(sizes: Sizes) -> list[Measure]:
    return [*(_of(sizes, engine) for engine in ENGINES), *(_idle_workers(sizes, each) for each in ENGINES)]


def _of(sizes: Sizes, engine: Engine) -> Measure:
    what = "no-op runs of a native agent on new threads, created and awaited by raw sockets"
    many = f"{what}, {HTTP_CALLERS} callers; {RAW}"
    rows = (
        Row(f"runs/{engine}", many, "runs/s", target=RATES[engine]),
        Row(f"runs/{engine}_cpu", f"CPU of the server: {many}", "ms", "lower", target=CPU_MS[engine]),
        Row(f"runs/{engine}_lone", f"{what}, one caller, p50; {RAW}", "ms", "lower", target=LONE_MS[engine]),
    )
    return Measure(rows, partial(_figures, engine=engine, size=sizes.runs))


async def _figures(host: Host, engine: Engine, size: int) -> list[Figures]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(agent_server(host, engine))
        client = await stack.enter_async_context(client_of(server.url))
        raw = await _raw(host, engine, stack)
        meter = await server_meter(host, server, postgres=engine == "postgres")
        database = await host.database_clock() if engine == "postgres" else None
        beside = Meter({"client": own_seconds, "database": database})
        sides: dict[str, Side] = {
            "ours": meter.around(client.native),
            "raw": beside.around(lambda count: raw(count * MORE, HTTP_CALLERS), MORE),
        }
        found = await interleave(size, host.sizes.rounds, sides)
        by_one = await server_meter(host, server, postgres=engine == "postgres")
        lones = by_one.around(client.lones)
        await lones(WARM)
        lone = await lones(host.sizes.lone_runs)
        raw_lone = 1000 / await raw(host.sizes.lone_runs, 1)
    costs, raw_costs = meter.figures(), with_raw(beside)
    cpu: Figures = {"ours": costs.get("cpu_server", 0.0)}
    if "cpu_raw" in raw_costs:
        cpu["raw"] = raw_costs["cpu_raw"]
    return [
        {"ours": found["ours"], "raw": found["raw"], **costs, **raw_costs},
        cpu,
        {"ours": lone, "raw": raw_lone, **by_one.figures()},
    ]


async def _raw(host: Host, engine: Engine, stack: AsyncExitStack) -> RawRuns:
    if engine == "sqlite":
        return lambda count, callers: raw_sqlite.runs(host.new_file(), count, callers)
    pool = await raw_postgres.open_pool(await host.new_database(), HTTP_CALLERS)
    return partial(raw_postgres.runs, await stack.enter_async_context(pool))


async def server_meter(host: Host, server: ServerProcess, *, postgres: bool) -> Meter:
    """Build a meter of a server, of this process as its client, and of the database if it is PostgreSQL."""
    clocks: dict[str, Clock | None] = {"server": partial(seconds_of_tree, server.pid), "client": own_seconds}
    if postgres:
        clocks["database"] = await host.database_clock()
    return Meter(clocks, SETTLE_SECONDS)


# --- idle workers -----------------------------------------------------------------------------------------


def _idle_workers(sizes: Sizes, engine: Engine) -> Measure:
    count = label(sizes.idle_workers)
    row = Row(
        f"runs/{engine}_idle_workers",
        f"CPU of a server for a no-op run while {count} workers of other agents wait; raw: while none waits",
        "ms",
        "lower",
        target_raw=IDLE_TIMES,
    )
    return Measure((row,), partial(_idle_figures, engine=engine, size=sizes.idle_runs))


async def _idle_figures(host: Host, engine: Engine, size: int) -> list[Figures]:
    async with agent_server(host, engine) as server, client_of(server.url) as client:
        clock = {"server": partial(seconds_of, server.pid)}
        alone, beside = Meter(clock, SETTLE_SECONDS), Meter(clock, SETTLE_SECONDS)
        await interleave(size, host.sizes.rounds, {"alone": alone.around(client.native)})
        async with _waiting_workers(server.url, host.sizes.idle_workers):
            await interleave(size, host.sizes.rounds, {"beside": beside.around(client.native)})
    return [{"ours": beside.figures()["cpu_server"], "raw": alone.figures()["cpu_server"]}]


@asynccontextmanager
async def _waiting_workers(url: str, count: int) -> AsyncIterator[None]:
    """Run workers over HTTP that repeatedly ask for runs of an agent that gets none."""
    async with socket_client(url, count) as client:
        connections = client.connections
        waiting = [asyncio.create_task(_claims(client, each, n)) for n, each in enumerate(connections)]
        try:
            # Wait until each has asked, because their first claims are not counted.
            await asyncio.sleep(2.0)
            yield
            for task in waiting:
                if task.done():
                    task.result()
        finally:
            for task in waiting:
                task.cancel()
            for task in waiting:
                with suppress(asyncio.CancelledError):
                    await task


async def _claims(client: SocketClient, connection: Connection, number: int) -> None:
    wanted = {"worker_id": f"idle-{number}", "agents": [f"other-{number % 10}"], "wait": IDLE_SECONDS}
    request = request_to(client.host, "/api/v1/work/claim", wanted)
    while True:
        await connection.ask(request)


# --- the client -------------------------------------------------------------------------------------------


class Client:
    """Creates a thread, runs on it and waits for the values, on our API or on LangGraph's."""

    def __init__(self, sockets: SocketClient) -> None:
        self._sockets = sockets

    async def native(self, size: int) -> float:
        await self._sockets.open()
        return await spread(HTTP_CALLERS, size, self._native)

    async def langgraph(self, size: int) -> float:
        await self._sockets.open()
        return await spread(HTTP_CALLERS, size, self._langgraph)

    async def lones(self, times: int) -> float:
        """Return median milliseconds of runs requested one by one."""
        return median([await self.lone() for _ in range(times)])

    async def lone(self) -> float:
        """Return milliseconds from requesting a run on an existing thread to its values."""
        await self._sockets.open()
        thread = await self._sockets.post("/api/v1/threads", {})
        began = time.perf_counter()
        await self._wait(thread["thread_id"], 0)
        return (time.perf_counter() - began) * 1000

    async def _native(self, number: int) -> None:
        thread = await self._sockets.post("/api/v1/threads", {})
        await self._wait(thread["thread_id"], number)

    async def _wait(self, thread_id: str, number: int) -> None:
        wanted = {"assistant_id": "noop", "thread_id": thread_id, "input": {"number": number}}
        check((await self._sockets.post("/api/v1/runs/wait", wanted))["values"], number)

    async def _langgraph(self, number: int) -> None:
        thread = await self._sockets.post("/threads", {})
        wanted = {"assistant_id": "noop", "input": {"number": number}}
        check(await self._sockets.post(f"/threads/{thread['thread_id']}/runs/wait", wanted), number)


def check(values: Any, number: int) -> None:
    """Check that the run returned its input."""
    if values != {"number": number}:
        raise RuntimeError(f"run {number} gave {values}")


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    async with socket_client(url, HTTP_CALLERS) as sockets:
        yield Client(sockets)
