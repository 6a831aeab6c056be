"""Streams of runs over HTTP: rates of one client and of many, and the latency of the first event."""

import asyncio
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import aiohttp

from bench.cpu import SETTLE_SECONDS, Clock, Meter, own_and_ended_seconds, seconds_of, seconds_of_tree
from bench.environments import ROOT
from bench.host import Host
from bench.http_rows import resident_mebibytes
from bench.http_servers import ENGINES, Engine
from bench.measures import Figures, Measure, Row
from bench.run_servers import agent_server
from bench.sizes import Sizes, label
from bench.stream_clients import allow_files
from bench.timing import Side, interleave
from perdure.testing.serving import ServerProcess

WARM_EVENTS = 3


MOST_MEBIBYTES = 1024.0
FIRST_MS = 15.0


def measures(sizes: Sizes) -> list[Measure]:
    return [*(_of(sizes, engine) for engine in ENGINES), _crowd(sizes)]


def _crowd(sizes: Sizes) -> Measure:
    clients, events = label(sizes.crowd), sizes.crowd_events
    rows = (
        Row(
            "stream/crowd_memory",
            f"most memory of a server with {clients} SSE clients on one run of {events} events",
            "MiB",
            "lower",
            target=MOST_MEBIBYTES,
        ),
        Row("stream/crowd", f"{clients} SSE clients on one run, every event to each", "deliveries/s"),
    )
    return Measure(rows, _crowd_figures)


async def _crowd_figures(host: Host) -> list[Figures]:
    allow_files()
    async with agent_server(host, "sqlite") as server:
        await _rate(host, server, 1, 1)
        delivered = host.sizes.crowd * host.sizes.crowd_events
        before = seconds_of(server.pid)
        rate = await _rate(host, server, host.sizes.crowd, host.sizes.crowd_events)
        cpu = (seconds_of(server.pid) - before) * 1000 / delivered
        memory = resident_mebibytes(server.pid, most=True)
    return [{"ours": memory}, {"ours": rate, "cpu_server": cpu}]


def _of(sizes: Sizes, engine: Engine) -> Measure:
    one = f"one run that emits {label(sizes.events)} events, durable, to one SSE client"
    many = f"{sizes.listeners} SSE clients on one run, every event to each"
    first = "asking for a run to the first event of its stream, p50"
    rows = (
        Row(f"stream/{engine}_one", one, "events/s", target=10_000.0),
        Row(f"stream/{engine}_many", many, "deliveries/s", target=40_000.0),
        Row(f"stream/{engine}_first", first, "ms", "lower", target=FIRST_MS),
    )
    return Measure(rows, partial(_figures, engine=engine))


async def _figures(host: Host, engine: Engine) -> list[Figures]:
    sizes = host.sizes
    async with agent_server(host, engine) as server:
        one = await _measured(host, server, engine, sizes.events, partial(_rate, host, server, 1))
        many = await _measured(
            host,
            server,
            engine,
            sizes.heard_events,
            partial(_rate, host, server, sizes.listeners),
            sizes.listeners,
        )
        meter = await _meter(host, server, engine)
        side = meter.around(partial(_first, server))
        await side(WARM_EVENTS)
        first = {"ours": await side(sizes.first_events), **meter.figures()}
    return [one, many, first]


async def _measured(
    host: Host, server: ServerProcess, engine: Engine, size: int, side: Side, units: int = 1
) -> Figures:
    meter = await _meter(host, server, engine)
    return {
        **await interleave(size, host.sizes.rounds, {"ours": meter.around(side, units)}),
        **meter.figures(),
    }


async def _meter(host: Host, server: ServerProcess, engine: Engine) -> Meter:
    """Build a meter of a server, of its clients, counted after their end, and of PostgreSQL."""
    clocks: dict[str, Clock | None] = {
        "server": partial(seconds_of_tree, server.pid),
        "client": own_and_ended_seconds,
        "database": await host.database_clock() if engine == "postgres" else None,
    }
    return Meter(clocks, SETTLE_SECONDS)


async def _rate(host: Host, server: ServerProcess, clients: int, events: int) -> float:
    """Return the events per second of all clients together."""
    go = host.new_folder() / "go"
    os.mkfifo(go)
    async with aiohttp.ClientSession() as session:
        wanted = {"assistant_id": "talk", "input": {"go": str(go), "events": events}}
        async with session.post(f"{server.url}/api/v1/runs", json=wanted) as response:
            response.raise_for_status()
            run_id = (await response.json())["run_id"]
    return clients * events / await _listen(server, f"/api/v1/runs/{run_id}/stream", clients, events, go)


async def _listen(server: ServerProcess, path: str, clients: int, events: int, go: Path) -> float:
    program = (sys.executable, "-m", "bench.stream_clients", "127.0.0.1", str(server.port), path)
    process = await asyncio.create_subprocess_exec(
        *program, str(clients), str(events), str(go), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the readers of {path} failed:\n{server.log()}")
    return float(json.loads(told)["seconds"])


async def _first(server: ServerProcess, times: int) -> float:
    """Return median milliseconds from requesting a run to the first event of its stream."""
    return median([await _first_of_one(server) for _ in range(times)])


async def _first_of_one(server: ServerProcess) -> float:
    body = json.dumps({"assistant_id": "noop"}).encode()
    head = (
        f"POST /api/v1/runs/stream HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        started = time.perf_counter()
        writer.write(head.encode() + body)
        await reader.readuntil(b"event: ")
        taken = (time.perf_counter() - started) * 1000
        await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    return taken
