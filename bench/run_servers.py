"""Servers that execute runs: ours with its worker inside, `langgraph dev`, and aegra on PostgreSQL."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import MappingProxyType

from bench import agents
from bench.environments import AEGRA, LANGGRAPH, ROOT
from bench.host import Host
from bench.http_servers import START_SECONDS, Engine, our_server, running
from bench.work import HTTP_CALLERS
from perdure.testing.serving import ServerProcess

GRAPH = """
from typing import Any, TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    number: int


def noop(state: State) -> dict[str, Any]:
    return {"number": state["number"]}


def talk(state: State) -> dict[str, Any]:
    tell = get_stream_writer()
    for number in range(state["number"]):
        tell({"number": number, "token": "a word or two"})
    return {"number": state["number"]}


graph = StateGraph(State).add_node("noop", noop).add_edge(START, "noop").add_edge("noop", END).compile()
talker = StateGraph(State).add_node("talk", talk).add_edge(START, "talk").add_edge("talk", END).compile()
"""
"""The smallest graph, which does nothing, like our agent; and one that emits events."""


NOTHING: Mapping[str, str] = MappingProxyType({})
GRAPHS = {"noop": "./graph.py:graph", "talk": "./graph.py:talker"}


def graph_server(
    host: Host, engine: Engine, more: Mapping[str, str] = NOTHING
) -> AbstractAsyncContextManager[ServerProcess]:
    """Start our server in the folder of the graphs, where it finds them as the others do."""
    folder = graph_folder(host, "langgraph.json", {"dependencies": ["."]})
    environment = {**os.environ, "N_JOBS_PER_WORKER": str(HTTP_CALLERS), **more}
    return our_server(host, engine, (), environment, folder)


def agent_server(
    host: Host, engine: Engine, more: Mapping[str, str] = NOTHING
) -> AbstractAsyncContextManager[ServerProcess]:
    """Start our server with the measured agents; it executes one run per caller at once."""
    environment = {**os.environ, "N_JOBS_PER_WORKER": str(HTTP_CALLERS), **more}
    return our_server(host, engine, ("--agents", agents.PATH), environment)


@asynccontextmanager
async def langgraph_server(host: Host, options: Sequence[str] = ()) -> AsyncIterator[ServerProcess]:
    """Start `langgraph dev`, which keeps everything in memory; by default it does one job at a time."""
    await asyncio.to_thread(LANGGRAPH.ensure)
    folder = graph_folder(host, "langgraph.json", {"dependencies": ["."]})
    server = ServerProcess(
        (str(LANGGRAPH.program("langgraph")), "dev", "--no-browser", "--no-reload", *options),
        folder=folder,
        environment={**os.environ, "LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"},
        start_seconds=START_SECONDS,
        health_path="/ok",
    )
    async with running(server):
        yield server


@asynccontextmanager
async def aegra_server(host: Host) -> AsyncIterator[ServerProcess]:
    """Start aegra on its own database."""
    python = await asyncio.to_thread(AEGRA.ensure)
    server = ServerProcess(
        (str(python), "-m", "bench.peer_aegra"),
        folder=graph_folder(host, "aegra.json", {}),
        environment={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DATABASE_URL": await host.new_database(),
            "ENV_MODE": "PRODUCTION",
            "LOG_LEVEL": "WARNING",
        },
        start_seconds=START_SECONDS,
        health_path="/health",
    )
    async with running(server):
        yield server


def graph_folder(host: Host, file: str, settings: dict[str, object]) -> Path:
    """Create a folder with the graph, and with the file that names it."""
    folder = host.new_folder()
    (folder / "graph.py").write_text(GRAPH)
    (folder / file).write_text(json.dumps({**settings, "graphs": GRAPHS}))
    return folder
