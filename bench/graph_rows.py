"""LangGraph graphs through `langgraph_sdk`: one client and one graph on our server, on peers, and alone."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

from bench.environments import AEGRA, LANGGRAPH
from bench.host import Host
from bench.http_servers import ENGINES, Engine
from bench.measures import Figures, Measure, Row
from bench.run_rows import LANGGRAPH_TEN, PEER_SHARE, check
from bench.run_servers import aegra_server, graph_folder, graph_server, langgraph_server
from bench.sizes import Sizes
from bench.timing import Side, interleave, spread
from bench.work import HTTP_CALLERS
from perdure.testing.serving import ServerProcess

PEERS: dict[str, tuple[Callable[[Host], AbstractAsyncContextManager[ServerProcess]], str, float]] = {
    "langgraph_dev": (
        partial(langgraph_server, options=LANGGRAPH_TEN),
        f"langgraph dev {LANGGRAPH.version} in memory, 10 jobs at once",
        10.0,
    ),
    "aegra": (aegra_server, f"aegra {AEGRA.version} on PostgreSQL", 7.0),
}
ALONE = 0.4
SOONER = {"langgraph_dev": 0.1, "aegra": 1.0}
MORE_EVENTS = 4.0
TOLD = 1_000
WARM = 3


def measures(sizes: Sizes) -> list[Measure]:
    rows = (*_run_rows(), *_first_rows(), *_event_rows())
    return [Measure(rows, partial(_figures, size=sizes.graph_runs))]


async def _figures(host: Host, size: int) -> list[Figures]:
    async with _clients(host) as clients:
        return [
            *await _runs(host, clients, size),
            *await _firsts(host, clients),
            *await _events(host, clients),
        ]


def _pairs() -> list[tuple[Engine, str]]:
    return [(engine, name) for engine in ENGINES for name in PEERS]


def _run_rows() -> list[Row]:
    what = f"no-op graph runs on new threads through langgraph_sdk, {HTTP_CALLERS} callers"
    rows = [
        Row(
            f"graphs/{engine}_vs_{name}",
            f"{what}; peer: {PEERS[name][1]}",
            "runs/s",
            target_peer=PEERS[name][2],
        )
        for engine, name in _pairs()
    ]
    alone = f"{what}; raw: graph.astream in a loop in one process"
    return rows + [Row(f"graphs/{engine}_vs_alone", alone, "runs/s", target_raw=ALONE) for engine in ENGINES]


def _first_rows() -> list[Row]:
    what = "asking for a graph's run to the first event of its stream through langgraph_sdk, p50"
    return [
        Row(f"graphs/{engine}_first_vs_{name}", what, "ms", "lower", target_peer=SOONER[name])
        for engine, name in _pairs()
    ]


def _event_rows() -> list[Row]:
    what = f"{TOLD} custom events of one run through langgraph_sdk"
    return [
        Row(f"graphs/{engine}_events_vs_{name}", what, "events/s", target_peer=MORE_EVENTS)
        for engine, name in _pairs()
        if name == "langgraph_dev"
    ]


# --- the sides --------------------------------------------------------------------------------------------


@asynccontextmanager
async def _clients(host: Host) -> AsyncIterator[dict[str, Any]]:
    """A client of each server that is measured, by its name."""
    from langgraph_sdk import get_client

    async with AsyncExitStack() as stack:
        servers: dict[str, ServerProcess] = {}
        for engine in ENGINES:
            servers[engine] = await stack.enter_async_context(graph_server(host, engine))
        for name, (make, _, _) in PEERS.items():
            if peer := await host.try_peer(stack, make(host)):
                servers[name] = peer
        clients = {name: get_client(url=server.url) for name, server in servers.items()}
        for client in clients.values():
            await stack.enter_async_context(client)
        yield clients


async def _runs(host: Host, clients: dict[str, Any], size: int) -> list[Figures]:
    sides: dict[str, Side] = {
        name: partial(_rate, client, PEER_SHARE if name in PEERS else 1) for name, client in clients.items()
    }
    sides["alone"] = partial(_alone, host)
    fewer = dict.fromkeys(PEERS, host.sizes.peer_rounds)
    found = await interleave(size, host.sizes.rounds, sides, fewer)
    beside = [_beside(found, engine, name) for engine, name in _pairs()]
    return beside + [{"ours": found[engine], "raw": found["alone"]} for engine in ENGINES]


def _beside(found: dict[str, float], engine: str, name: str) -> Figures:
    return {"ours": found[engine], **({"peer": found[name]} if name in found else {})}


async def _rate(client: Any, share: int, size: int) -> float:
    async def call(number: int) -> None:
        thread = await client.threads.create()
        check(await client.runs.wait(thread["thread_id"], "noop", input={"number": number}), number)

    return await spread(HTTP_CALLERS, max(size // share, 1), call)


async def _alone(host: Host, size: int) -> float:
    """The graph by itself, in a process of its own; it says how many runs a second it does."""
    folder = graph_folder(host, "langgraph.json", {})
    program = (
        "import asyncio, time, graph\n"
        "async def main(size):\n"
        "    began = time.perf_counter()\n"
        "    for number in range(size):\n"
        "        async for _ in graph.graph.astream({'number': number}): pass\n"
        "    return size / (time.perf_counter() - began)\n"
        f"print(asyncio.run(main({size})))\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError("the graph by itself failed")
    return float(told)


async def _firsts(host: Host, clients: dict[str, Any]) -> list[Figures]:
    found = {}
    for name, client in clients.items():
        count = host.sizes.first_events // (PEER_SHARE if name in PEERS else 1)
        times = [await _first(client) for _ in range(WARM + max(count, 1))]
        found[name] = median(times[WARM:])
    return [_beside(found, engine, name) for engine, name in _pairs()]


async def _first(client: Any) -> float:
    thread = await client.threads.create()
    began = time.perf_counter()
    taken = 0.0
    async for _ in client.runs.stream(thread["thread_id"], "noop", input={"number": 1}):
        taken = taken or (time.perf_counter() - began) * 1000
    return taken


async def _events(host: Host, clients: dict[str, Any]) -> list[Figures]:
    sides: dict[str, Side] = {
        name: partial(_told, client) for name, client in clients.items() if name != "aegra"
    }
    fewer = dict.fromkeys(PEERS, host.sizes.peer_rounds)
    found = await interleave(TOLD, host.sizes.rounds, sides, fewer)
    return [_beside(found, engine, "langgraph_dev") for engine in ENGINES]


async def _told(client: Any, events: int) -> float:
    """Custom events a second, from the first to the last."""
    thread = await client.threads.create()
    stream = client.runs.stream(thread["thread_id"], "talk", input={"number": events}, stream_mode="custom")
    times = [time.perf_counter() async for part in stream if part.event == "custom"]
    if len(times) != events:
        raise RuntimeError(f"{len(times)} of {events} events came")
    return (events - 1) / max(times[-1] - times[0], 1e-9)
