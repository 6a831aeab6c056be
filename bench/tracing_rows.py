"""Cost of traces: CPU time of a server for a run with tracing on and off."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from statistics import median

from bench.cpu import seconds_of
from bench.host import Host
from bench.measures import Figures, Measure, Row
from bench.run_rows import Client, client_of
from bench.run_servers import agent_server, graph_server
from bench.sizes import Sizes
from perdure.testing.serving import ServerProcess

MOST = 1.1
SETTLE_SECONDS = 1.0
"""Time to store the spans of the last runs, which also counts."""
SIDES = {"ours": "1", "raw": "0"}
"""The share of runs that each side traces."""

Start = Callable[[Host, Mapping[str, str]], AbstractAsyncContextManager[ServerProcess]]
Work = Callable[[Client, int], Awaitable[object]]

SERVERS: dict[str, tuple[str, Start, Work]] = {
    "sqlite": ("no-op run on SQLite", lambda host, more: agent_server(host, "sqlite", more), Client.native),
    "postgres": (
        "no-op run on PostgreSQL",
        lambda host, more: agent_server(host, "postgres", more),
        Client.native,
    ),
    "graph": (
        "no-op graph run on SQLite",
        lambda host, more: graph_server(host, "sqlite", more),
        Client.native,
    ),
}


def measures(sizes: Sizes) -> list[Measure]:
    """Build the rows of the server's CPU; PostgreSQL's is not counted."""
    return [
        Measure(
            (
                Row(
                    f"tracing/{name}",
                    f"CPU of a {what} with tracing on; raw: with tracing off",
                    "ms",
                    "lower",
                    target_raw=MOST,
                ),
            ),
            partial(_figures, start=start, work=work, size=sizes.runs),
        )
        for name, (what, start, work) in SERVERS.items()
    ]


async def _figures(host: Host, start: Start, work: Work, size: int) -> list[Figures]:
    taken: dict[str, list[float]] = {name: [] for name in SIDES}
    async with AsyncExitStack() as stack:
        sides = {}
        for name, share in SIDES.items():
            server = await stack.enter_async_context(start(host, {"PERDURE_TRACE_SAMPLE": share}))
            client = await stack.enter_async_context(client_of(server.url))
            sides[name] = partial(_cpu, server.pid, partial(work, client))
            await sides[name](max(size // 10, 1))
        for _ in range(host.sizes.rounds):
            for name, side in sides.items():
                taken[name].append(await side(size))
    return [{name: median(figures) for name, figures in taken.items()}]


async def _cpu(pid: int, work: Callable[[int], Awaitable[object]], size: int) -> float:
    """Return milliseconds of CPU per run, of all threads of the server."""
    began = seconds_of(pid)
    await work(size)
    await asyncio.sleep(SETTLE_SECONDS)
    return (seconds_of(pid) - began) * 1000 / size
