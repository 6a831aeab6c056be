"""Store of a graph at run time: in a worker with a database, and in a worker behind a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.config import get_store
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from tests.server.native.support import housed
from tests.worker.isolated_agents import remembering

from perdure import Agents, Perdure, RunRequest, open_store
from perdure.agents.commands import isolated
from perdure.client.run_queue import RemoteRunQueue
from perdure.worker.options import WorkerOptions
from perdure.worker.worker import RunWorker


class State(TypedDict, total=False):
    who: str
    seen: list[Any]


async def remember(state: State, runtime: Runtime[Any]) -> State:
    assert runtime.store is not None
    await runtime.store.aput(("people", state["who"]), "first", {"n": 1})
    found = await runtime.store.aget(("people", state["who"]), "first")
    assert found is not None
    return {"seen": [found.value]}


def remember_without_waiting(state: State) -> State:
    store = get_store()
    store.put(("people", state["who"]), "second", {"n": 2}, ttl=5)
    found = store.search(("people",), filter={"n": {"$gt": 1}})
    return {"seen": [*state["seen"], [item.key for item in found], store.list_namespaces(prefix=("people",))]}


async def wait_in_the_loop(state: State) -> State:
    return {"seen": [*state["seen"], get_store().get(("people", state["who"]), "second") is not None]}


def agents() -> Agents:
    graph = StateGraph(State)
    for node in (remember, remember_without_waiting, wait_in_the_loop):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "remember")
    graph.add_edge("remember", "remember_without_waiting")
    graph.add_edge("remember_without_waiting", "wait_in_the_loop")
    graph.add_edge("wait_in_the_loop", END)
    known = Agents()
    known.register("memory", graph)
    return known


SEEN = [{"n": 1}, ["second"], [["people", "ada"]], True]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return str(request.getfixturevalue("database_url"))


async def test_a_graph_remembers_beside_the_database(url: str) -> None:
    async with Perdure(url, agents=agents()) as perdure:
        end = await perdure.run("memory", {"who": "ada"})
        assert end.run.status == "success"
        assert end.values["seen"] == SEEN
        found = await perdure.items.search(["people"])
        assert [(item.key, item.expires_at is None) for item in found] == [("second", False), ("first", True)]


async def test_a_graph_remembers_behind_a_server(url: str) -> None:
    async with open_store(url) as store, housed(store) as house:
        worker = RunWorker(
            RemoteRunQueue(house.visitor.url), agents(), WorkerOptions(heartbeat=5.0, interval=1.0)
        )
        await worker.start()
        try:
            run = await house.client.create_run(RunRequest(assistant_id="memory", input={"who": "ada"}))
            end = await house.client.join_run(run.run_id)
        finally:
            await worker.stop()
        assert (end.run.status, end.values["seen"]) == ("success", SEEN)
        found = await house.client.items.get(["people", "ada"], "first")
        assert found is not None
        assert found.value == {"n": 1}


async def test_a_function_remembers_wherever_it_runs(tmp_path: Path) -> None:
    known = Agents()
    known.register("here", remembering)
    known.register(
        "apart", isolated("tests.worker.isolated_agents:remembering", directory=Path(__file__).parents[2])
    )
    async with Perdure(f"sqlite:///{tmp_path}/runs.db", agents=known) as perdure:
        for name in ("here", "apart"):
            end = await perdure.run(name, name)
            assert (end.run.status, end.values) == ("success", [{"by": name}, [name], "refused"])
        assert (await perdure.items.list_namespaces()).items == [("by", "apart"), ("by", "here")]
