"""Runs over HTTP: made on new threads and awaited, by one client on every server."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

import aiohttp

from bench.environments import AEGRA, LANGGRAPH
from bench.host import Host
from bench.http_servers import ENGINES
from bench.measures import Figures, Measure, Row
from bench.run_servers import aegra_server, agent_server, langgraph_server
from bench.sizes import Sizes
from bench.timing import Side, interleave, spread
from bench.work import HTTP_CALLERS
from perdure.testing.serving import ServerProcess

LANGGRAPH_TEN = ("--n-jobs-per-worker", "10")
PEERS: dict[str, tuple[Callable[[Host], AbstractAsyncContextManager[ServerProcess]], str, float]] = {
    "langgraph_dev": (langgraph_server, f"langgraph dev {LANGGRAPH.version} in memory, 1 job at once", 20.0),
    "langgraph_dev_10": (
        partial(langgraph_server, options=LANGGRAPH_TEN),
        f"langgraph dev {LANGGRAPH.version} in memory, 10 jobs at once",
        20.0,
    ),
    "aegra": (aegra_server, f"aegra {AEGRA.version} on PostgreSQL", 15.0),
}
PEER_SHARE = 10
"""A peer does a tenth of the runs, since it is slower; a rate is a rate."""


def measures(sizes: Sizes) -> list[Measure]:
    rows = tuple(
        Row(
            f"runs/{engine}_vs_{name}",
            f"no-op runs on new threads, created and awaited, {HTTP_CALLERS} callers; peer: {what}",
            "runs/s",
            target_peer=target,
        )
        for engine in ENGINES
        for name, (_, what, target) in PEERS.items()
    )
    return [Measure(rows, partial(_figures, size=sizes.runs))]


async def _figures(host: Host, size: int) -> list[Figures]:
    async with AsyncExitStack() as stack:
        sides: dict[str, Side] = {}
        for engine in ENGINES:
            server = await stack.enter_async_context(agent_server(host, engine))
            sides[engine] = (await stack.enter_async_context(client_of(server.url))).native
        for name, (make, _, _) in PEERS.items():
            if peer := await host.try_peer(stack, make(host)):
                sides[name] = (await stack.enter_async_context(client_of(peer.url))).langgraph
        fewer = dict.fromkeys(PEERS, host.sizes.peer_rounds)
        found = await interleave(size, host.sizes.rounds, sides, fewer)
    pairs = [(engine, name) for engine in ENGINES for name in PEERS]
    return [
        {"ours": found[engine], **({"peer": found[name]} if name in found else {})} for engine, name in pairs
    ]


class Client:
    """Makes a thread, runs on it and waits for the values, on our API or on LangGraph's."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def native(self, size: int) -> float:
        return await spread(HTTP_CALLERS, size, self._native)

    async def langgraph(self, size: int) -> float:
        return await spread(HTTP_CALLERS, max(size // PEER_SHARE, 1), self._langgraph)

    async def _native(self, number: int) -> None:
        thread = await self._post("/api/v1/threads", {})
        wanted = {"assistant_id": "noop", "thread_id": thread["thread_id"], "input": {"number": number}}
        end = await self._post("/api/v1/runs/wait", wanted)
        check(end["values"], number)

    async def _langgraph(self, number: int) -> None:
        thread = await self._post("/threads", {})
        wanted = {"assistant_id": "noop", "input": {"number": number}}
        check(await self._post(f"/threads/{thread['thread_id']}/runs/wait", wanted), number)

    async def _post(self, path: str, body: object) -> dict[str, object]:
        async with self._session.post(self._url + path, json=body) as response:
            response.raise_for_status()
            answer: dict[str, object] = await response.json()
            return answer


def check(values: object, number: int) -> None:
    """The run gave what it was given."""
    if values != {"number": number}:
        raise RuntimeError(f"run {number} gave {values}")


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=HTTP_CALLERS)) as session:
        yield Client(session, url)
