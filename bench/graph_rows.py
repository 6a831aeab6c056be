"""LangGraph graphs over LangGraph's API: one graph and one client on our server, on peers, and by itself."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

from bench.cpu import Meter
from bench.environments import AEGRA, LANGGRAPH
from bench.host import Host
from bench.http_servers import ENGINES, Engine
from bench.measures import Figures, Measure, Row
from bench.run_rows import check, client_of, server_meter
from bench.run_servers import aegra_server, graph_folder, graph_server, langgraph_server
from bench.sizes import Sizes
from bench.timing import Side, interleave, spread
from bench.work import HTTP_CALLERS
from perdure.testing.serving import ServerProcess

Start = Callable[[Host], AbstractAsyncContextManager[ServerProcess]]

SERVERS: dict[str, Start] = {
    "langgraph_dev_1": langgraph_server,
    "langgraph_dev_10": partial(langgraph_server, options=("--n-jobs-per-worker", "10")),
    "aegra": aegra_server,
}
PEERS: dict[str, tuple[tuple[str, ...], str, float]] = {
    "langgraph_dev": (
        ("langgraph_dev_1", "langgraph_dev_10"),
        f"langgraph dev {LANGGRAPH.version} in memory, the better of 1 and 10 jobs at once",
        8.0,
    ),
    "aegra": (("aegra",), f"aegra {AEGRA.version} on PostgreSQL", 4.0),
}
"""The servers of each peer, of which the best counts, and our target for the rate of runs."""
SHARES = {"langgraph_dev_10": 4}
"""Divisors of a server's rounds: this one does about 14 runs/s, and is never the best."""
FIRST_SHARES = {"langgraph_dev_1": 3, "langgraph_dev_10": 3}
"""Divisors of first events: an idle `langgraph dev` polls twice a second, so each takes a second."""
ON_POSTGRES = ("postgres", "aegra")
OF_SAVER = {"sqlite": 2.2, "postgres": None}
SOONER = {"langgraph_dev": 0.1, "aegra": 1.0}
MORE_EVENTS = 4.0
TOLD = 1_000
WARM = 3
CLIENTS = {"": "langgraph_sdk", "_sockets": "raw sockets"}
"""The clients, by the suffix of their rows."""


def measures(sizes: Sizes) -> list[Measure]:
    rows = (*_run_rows(), *_first_rows(), *_event_rows())
    return [Measure(rows, partial(_figures, size=sizes.graph_runs))]


async def _figures(host: Host, size: int) -> list[Figures]:
    async with _servers(host) as servers, _clients(servers) as clients:
        return [
            *await _runs(host, servers, clients, size),
            *await _firsts(host, servers, clients),
            *await _events(host, servers, clients),
        ]


def _pairs() -> list[tuple[Engine, str]]:
    return [(engine, name) for engine in ENGINES for name in PEERS]


def _run_rows() -> list[Row]:
    what = f"no-op graph runs on new threads through {{}}, {HTTP_CALLERS} callers"
    rows = [
        Row(
            f"graphs/{engine}{mark}_vs_{name}",
            f"{what.format(client)}; peer: {PEERS[name][1]}",
            "runs/s",
            target_peer=PEERS[name][2],
        )
        for mark, client in CLIENTS.items()
        for engine, name in _pairs()
    ]
    cpu = f"CPU of the server: {what.format('raw sockets')}; raw: the graph with InMemorySaver in one process"
    return rows + [
        Row(f"graphs/{engine}_cpu", cpu, "ms", "lower", target_raw=OF_SAVER[engine]) for engine in ENGINES
    ]


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
async def _servers(host: Host) -> AsyncIterator[dict[str, ServerProcess]]:
    """Start each measured server, by name."""
    async with AsyncExitStack() as stack:
        servers: dict[str, ServerProcess] = {}
        for engine in ENGINES:
            servers[engine] = await stack.enter_async_context(graph_server(host, engine))
        for name, start in SERVERS.items():
            if peer := await host.try_peer(stack, start(host)):
                servers[name] = peer
        yield servers


@asynccontextmanager
async def _clients(servers: Mapping[str, ServerProcess]) -> AsyncIterator[dict[str, Any]]:
    """Open a `langgraph_sdk` client of each server."""
    from langgraph_sdk import get_client

    async with AsyncExitStack() as stack:
        clients = {name: get_client(url=server.url) for name, server in servers.items()}
        for client in clients.values():
            await stack.enter_async_context(client)
        yield clients


async def _runs(
    host: Host, servers: Mapping[str, ServerProcess], clients: Mapping[str, Any], size: int
) -> list[Figures]:
    figures: list[Figures] = []
    async with AsyncExitStack() as stack:
        by_sdk: dict[str, Side] = {name: partial(_rate, client) for name, client in clients.items()}
        by_sockets: dict[str, Side] = {
            name: (await stack.enter_async_context(client_of(server.url))).langgraph
            for name, server in servers.items()
        }
        for sides in (by_sdk, by_sockets):
            meters = await _meters(host, servers)
            measured = {name: meters[name].around(side) for name, side in sides.items()}
            found = await interleave(size, host.sizes.rounds, measured, shares=SHARES)
            figures += [_with_costs(found, meters, engine, name) for engine, name in _pairs()]
        saver = median([await _with_saver(host, size) for _ in range(host.sizes.rounds)])
    # The meters of the last sides: raw sockets add the least cost.
    return figures + [
        {"ours": meters[engine].figures().get("cpu_server", 0.0), "raw": saver} for engine in ENGINES
    ]


def _best(found: Mapping[str, float], peer: str, *, highest: bool) -> str | None:
    """Return the best server of a peer among those that took part."""
    known = [each for each in PEERS[peer][0] if each in found]
    return (max if highest else min)(known, key=lambda each: found[each]) if known else None


async def _meters(host: Host, servers: Mapping[str, ServerProcess]) -> dict[str, Meter]:
    return {
        name: await server_meter(host, server, postgres=name in ON_POSTGRES)
        for name, server in servers.items()
    }


def _with_costs(
    found: Mapping[str, float], meters: Mapping[str, Meter], engine: str, peer: str, *, highest: bool = True
) -> Figures:
    """Return our figure and the best of a peer, with both costs."""
    best = _best(found, peer, highest=highest)
    theirs = meters[best].figures() if best else {}
    names = {"cpu_server": "cpu_peer", "cpu_database": "cpu_peer_database"}
    return {
        "ours": found[engine],
        **({"peer": found[best]} if best else {}),
        **meters[engine].figures(),
        **{names[name]: figure for name, figure in theirs.items() if name in names},
    }


async def _rate(client: Any, size: int) -> float:
    async def call(number: int) -> None:
        thread = await client.threads.create()
        check(await client.runs.wait(thread["thread_id"], "noop", input={"number": number}), number)

    return await spread(HTTP_CALLERS, size, call)


async def _with_saver(host: Host, size: int) -> float:
    """Run the graph with LangGraph's saver in memory in its own process. Return milliseconds of CPU a run."""
    folder = graph_folder(host, "langgraph.json", {})
    program = (
        "import asyncio, time, graph\n"
        "from langgraph.checkpoint.memory import InMemorySaver\n"
        "async def main(size):\n"
        "    graph.graph.checkpointer = InMemorySaver()\n"
        "    for number in range(-size // 10, size):\n"
        "        if number == 0: began = time.process_time()\n"
        "        config = {'configurable': {'thread_id': str(number)}}\n"
        "        async for _ in graph.graph.astream({'number': number}, config): pass\n"
        "    return (time.process_time() - began) * 1000 / size\n"
        f"print(asyncio.run(main({size})))\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError("the graph by itself failed")
    return float(told)


async def _firsts(
    host: Host, servers: Mapping[str, ServerProcess], clients: Mapping[str, Any]
) -> list[Figures]:
    meters, found = await _meters(host, servers), {}
    for name, client in clients.items():
        side = meters[name].around(partial(_first, client))
        await side(WARM)
        found[name] = await side(max(host.sizes.graph_firsts // FIRST_SHARES.get(name, 1), 1))
    return [_with_costs(found, meters, engine, name, highest=False) for engine, name in _pairs()]


async def _first(client: Any, times: int) -> float:
    """Return median milliseconds from a run's request to the first event of its stream, run by run."""
    return median([await _first_of_one(client) for _ in range(times)])


async def _first_of_one(client: Any) -> float:
    thread = await client.threads.create()
    began = time.perf_counter()
    taken = 0.0
    async for _ in client.runs.stream(thread["thread_id"], "noop", input={"number": 1}):
        taken = taken or (time.perf_counter() - began) * 1000
    return taken


async def _events(
    host: Host, servers: Mapping[str, ServerProcess], clients: Mapping[str, Any]
) -> list[Figures]:
    meters = await _meters(host, servers)
    sides: dict[str, Side] = {
        name: meters[name].around(partial(_told, client))
        for name, client in clients.items()
        if name != "aegra"
    }
    found = await interleave(TOLD, host.sizes.rounds, sides)
    return [_with_costs(found, meters, engine, "langgraph_dev") for engine in ENGINES]


async def _told(client: Any, events: int) -> float:
    """Return custom events per second, from the first to the last."""
    thread = await client.threads.create()
    stream = client.runs.stream(thread["thread_id"], "talk", input={"number": events}, stream_mode="custom")
    times = [time.perf_counter() async for part in stream if part.event == "custom"]
    if len(times) != events:
        raise RuntimeError(f"{len(times)} of {events} events came")
    return (events - 1) / max(times[-1] - times[0], 1e-9)
