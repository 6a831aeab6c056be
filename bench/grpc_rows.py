"""Memory over gRPC: what a durable event costs the server, and how many come in by batches and streams."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from bench.host import Host
from bench.http_servers import Engine, our_server
from bench.measures import Figures, Measure, Row
from bench.sizes import Sizes
from perdure.client.grpc import GrpcMemory
from perdure.kernel.ids import RandomIds, ulid
from perdure.memory.records import NewMemoryEvent

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
                        "a durable event over gRPC: CPU of the server, with its indexing",
                        "ms",
                        "lower",
                        target=budget,
                    ),
                    Row(f"{engine}/grpc_ingest", f"durable events over gRPC, {CALLERS} callers", "events/s"),
                ),
                partial(_unary, engine=engine, count=count),
            ),
            Measure(
                (Row(f"{engine}/grpc_batches", f"{many}, 4 at once", "events/s", target=rate),),
                partial(_batches, engine=engine, count=batches),
            ),
            Measure(
                (Row(f"{engine}/grpc_stream", f"{many}, in one stream", "events/s", target=rate),),
                partial(_stream, engine=engine, count=batches),
            ),
        ]
    return made


@asynccontextmanager
async def _served(host: Host, engine: Engine) -> AsyncIterator[tuple[int, GrpcMemory]]:
    """A server with gRPC: its process id, and a client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--grpc-port", str(port), "--no-worker")
    async with our_server(host, engine, options) as server, GrpcMemory(f"127.0.0.1:{port}") as memory:
        await memory.ingest(_event())
        yield server.pid, memory


def _event() -> NewMemoryEvent:
    return NewMemoryEvent(event_id=ulid(int(time.time() * 1000), RandomIds()), session_id="s", text=TEXT)


def _cpu(pid: int) -> float:
    """The seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def _unary(host: Host, engine: Engine, count: int) -> list[Figures]:
    async with _served(host, engine) as (pid, memory):
        events = iter([_event() for _ in range(count)])

        async def call() -> None:
            for event in events:
                await memory.ingest(event)

        before, begun = _cpu(pid), time.perf_counter()
        await asyncio.gather(*(call() for _ in range(CALLERS)))
        taken, used = time.perf_counter() - begun, _cpu(pid) - before
    return [{"ours": 1000 * used / count}, {"ours": count / taken}]


async def _batches(host: Host, engine: Engine, count: int) -> list[Figures]:
    async with _served(host, engine) as (_, memory):
        waiting = iter([[_event() for _ in range(BATCH)] for _ in range(count)])

        async def call() -> None:
            for events in waiting:
                await memory.ingest_many(events)

        begun = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(4)))
        taken = time.perf_counter() - begun
    return [{"ours": count * BATCH / taken}]


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
