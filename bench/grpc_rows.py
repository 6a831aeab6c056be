"""Memory over gRPC: the server's cost of a durable event, and the rates of batches and streams."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import grpc

from bench.grpc_echo import METHOD
from bench.host import Host
from bench.http_servers import Engine, our_server
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes
from perdure import PerdureClient
from perdure.client.grpc import GrpcMemory
from perdure.kernel.ids import RandomIds, ulid
from perdure.memory.records import NewMemoryEvent
from perdure.testing.serving import ServerProcess

CALLERS = 64
BATCH = 500
TEXT = "x" * 200
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def measures(sizes: Sizes) -> list[Measure]:
    count, batches = sizes.memory_events, sizes.memory_batches
    made: list[Measure] = []
    engines: tuple[Engine, ...] = ("sqlite", "postgres")
    for engine in engines:
        budget = 0.6 if engine == "sqlite" else None
        rate = 10_000.0 if engine == "sqlite" else None
        many = f"{batches} batches of {BATCH} events over gRPC"
        made += [
            Measure(
                (
                    Row(
                        f"{engine}/grpc_ingest_cpu",
                        "a durable event over gRPC: CPU of the server, with its indexing; raw: a bare echo",
                        "ms",
                        "lower",
                        target=budget,
                    ),
                    Row(f"{engine}/grpc_ingest", f"durable events over gRPC, {CALLERS} callers", "events/s"),
                ),
                partial(_unary, engine=engine, count=count),
            ),
            Measure(
                (
                    Row(f"{engine}/grpc_batches", f"{many}, 4 at once", "events/s", target=rate),
                    Row(
                        f"{engine}/grpc_caught_up",
                        f"after {many}: until all of them can be searched",
                        "s",
                        "lower",
                        target=10.0 if engine == "sqlite" else None,
                    ),
                ),
                partial(_batches, engine=engine, count=batches),
            ),
            Measure(
                (Row(f"{engine}/grpc_stream", f"{many}, in one stream", "events/s", target=rate),),
                partial(_stream, engine=engine, count=batches),
            ),
        ]
    return made


@asynccontextmanager
async def _served(host: Host, engine: Engine) -> AsyncIterator[tuple[ServerProcess, GrpcMemory]]:
    """Start a server with gRPC, and open a client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--grpc-port", str(port), "--no-worker")
    async with our_server(host, engine, options) as server, GrpcMemory(f"127.0.0.1:{port}") as memory:
        await memory.ingest(_event())
        yield server, memory


def _event() -> NewMemoryEvent:
    return NewMemoryEvent(event_id=ulid(int(time.time() * 1000), RandomIds()), session_id="s", text=TEXT)


def _cpu(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def _unary(host: Host, engine: Engine, count: int) -> list[Figures]:
    async with _served(host, engine) as (server, memory):
        pid = server.pid
        events = iter([_event() for _ in range(count)])

        async def call() -> None:
            for event in events:
                await memory.ingest(event)

        before, begun = _cpu(pid), time.perf_counter()
        await asyncio.gather(*(call() for _ in range(CALLERS)))
        taken, used = time.perf_counter() - begun, _cpu(pid) - before
    return [{"ours": 1000 * used / count, "raw": await _echo(count)}, {"ours": count / taken}]


async def _echo(count: int) -> float:
    """Return the CPU of an echo server, in milliseconds per call."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.grpc_echo", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            echo = channel.unary_unary(METHOD)
            numbers = iter(range(count))
            await echo(TEXT.encode())

            async def call() -> None:
                for _ in numbers:
                    await echo(TEXT.encode())

            before = _cpu(process.pid)
            await asyncio.gather(*(call() for _ in range(CALLERS)))
            return 1000 * (_cpu(process.pid) - before) / count
    finally:
        process.terminate()
        await process.wait()


async def _batches(host: Host, engine: Engine, count: int) -> list[Figures]:
    async with _served(host, engine) as (server, memory):
        url = server.url
        waiting = iter([[_event() for _ in range(BATCH)] for _ in range(count)])

        async def call() -> None:
            for events in waiting:
                await memory.ingest_many(events)

        begun = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(4)))
        taken, begun = time.perf_counter() - begun, time.perf_counter()
        async with PerdureClient(url) as client:
            while (await client.memory.stats()).indexed <= count * BATCH:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        waited = time.perf_counter() - begun
    return [{"ours": count * BATCH / taken}, {"ours": waited}]


async def _stream(host: Host, engine: Engine, count: int) -> list[Figures]:
    async with _served(host, engine) as (_, memory):
        made = [[_event() for _ in range(BATCH)] for _ in range(count)]

        async def source() -> AsyncIterator[Sequence[NewMemoryEvent]]:
            for events in made:
                yield events

        begun = time.perf_counter()
        async for _ in memory.stream(source()):
            pass
        taken = time.perf_counter() - begun
    return [{"ours": count * BATCH / taken}]
