"""States and schemas of graphs on a server, and updates of their states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langgraph.graph import START, StateGraph
from langgraph_sdk.runtime import ServerRuntime
from tests.kernel.support import until_true
from tests.worker.graph_agents import Graphs, State

from perdure.assistants.service import Assistants
from perdure.embedding.perdure import Perdure
from perdure.graph_requests.graphs import AgentGraphs as GraphService
from perdure.graph_requests.service import GraphRequests
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.langgraph.views import CheckpointRef, NamespaceGraphs
from perdure.threads.records import RunCommand, RunRequest
from perdure.worker.registry import Agents

PATIENCE = 30.0


@pytest.fixture
def graphs() -> Graphs:
    graphs = Graphs()

    @graphs.agents.agent("plain")
    async def plain(ctx: Any, input: Any) -> Any:
        if input == "ask":
            return {"answer": await ctx.interrupt("really?")}
        return {"got": input}

    return graphs


@pytest.fixture(params=["sqlite", "postgres"])
async def perdure(request: pytest.FixtureRequest, tmp_path: Path, graphs: Graphs) -> AsyncIterator[Perdure]:
    where = (
        f"sqlite:///{tmp_path}/views.db"
        if request.param == "sqlite"
        else str(request.getfixturevalue("database_url"))
    )
    async with Perdure(where, agents=graphs.agents) as opened:
        yield opened


@pytest_asyncio.fixture(params=["here", "elsewhere"])
async def views(
    request: pytest.FixtureRequest, perdure: Perdure, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> NamespaceGraphs:
    """Views of a process that has the graphs, and of one that asks a worker."""
    await described(perdure, "plain")
    if request.param == "here":
        monkeypatch.delattr(GraphRequests, "ask")
        monkeypatch.delattr(Assistants, "description")
    return views_of(perdure, graphs.agents if request.param == "here" else None)


def views_of(perdure: Perdure, agents: Agents | None) -> NamespaceGraphs:
    services = perdure.services
    return NamespaceGraphs(
        agents, services.threads, services.assistants, services.graph_requests, services.items
    )


async def thread_of(perdure: Perdure, **more: Any) -> str:
    return (await perdure.threads.create_thread(**more)).thread_id


async def described(perdure: Perdure, agent: str) -> None:
    """Wait until the worker has registered an agent's schemas and drawings for servers without its code."""
    await until_true(lambda: perdure.assistants.description(agent))


async def assistant_of(perdure: Perdure, agent: str) -> str:
    found = await perdure.assistants.search(agent=agent)
    return found.items[0].assistant_id


# --- reading ----------------------------------------------------------------------------------------------


async def test_a_thread_without_a_state(perdure: Perdure, views: NamespaceGraphs) -> None:
    thread = await thread_of(perdure)
    state = await views.state(thread)
    assert (state["values"], state["next"], state["tasks"], state["checkpoint"]) == ({}, [], [], None)
    assert await views.history(thread) == []
    named = await thread_of(perdure, metadata={"graph_id": "steps"})
    state = await views.state(named)
    assert (state["values"], state["next"]) == ({}, [])
    for asked in (views.state("none"), views.history("none"), views.update_state("none", {})):
        with pytest.raises(NotFound):
            await asked


async def test_a_state_with_its_tasks_and_subgraphs(
    perdure: Perdure, views: NamespaceGraphs, graphs: Graphs
) -> None:
    thread = await thread_of(perdure)
    end = await perdure.run("nested", {"said": ["0"]}, thread_id=thread)
    state = await views.state(thread)
    assert (state["values"]["said"], state["next"]) == (["0", "one"], ["inner"])
    (task,) = state["tasks"]
    assert (task["name"], task["error"], task["state"]) == ("inner", None, None)
    assert task["interrupts"] == state["interrupts"]
    assert [each["value"] for each in state["interrupts"]] == ["well?"]
    metadata = state["metadata"]
    assert (metadata["source"], metadata["step"], metadata["run_id"]) == ("loop", 1, end.run.run_id)
    assert state["checkpoint"] == {
        "thread_id": thread,
        "checkpoint_ns": "",
        "checkpoint_id": state["checkpoint_id"],
    }
    assert state["parent_checkpoint"]["checkpoint_id"] == state["parent_checkpoint_id"]
    (task,) = (await views_of(perdure, graphs.agents).state(thread))["tasks"]
    assert task["checkpoint"]["checkpoint_ns"] == f"inner:{task['id']}"
    whole = await views.state(thread, subgraphs=True)
    inner = whole["tasks"][0]["state"]
    assert (inner["next"], inner["checkpoint"]["checkpoint_ns"]) == (["asks"], f"inner:{task['id']}")
    place = CheckpointRef(**{key: inner["checkpoint"][key] for key in ("checkpoint_id", "checkpoint_ns")})
    assert (await views.state(thread, place))["next"] == ["asks"]
    history = await views.history(thread, checkpoint=CheckpointRef(checkpoint_ns=f"inner:{task['id']}"))
    assert [each["metadata"]["source"] for each in history] == ["loop", "input"]


async def test_earlier_states(perdure: Perdure, views: NamespaceGraphs) -> None:
    thread = await thread_of(perdure)
    for word in ("a", "b"):
        await perdure.run("steps", {"said": [word]}, thread_id=thread)
    history = await views.history(thread)
    assert [each["metadata"]["step"] for each in history] == [6, 5, 4, 3, 2, 1, 0, -1]
    assert history[0]["values"]["said"] == ["a", "one", "two", "b", "one", "two"]
    assert [each["checkpoint_id"] for each in await views.history(thread, limit=2)] == [
        each["checkpoint_id"] for each in history[:2]
    ]
    before = CheckpointRef(checkpoint_id=history[5]["checkpoint_id"])
    assert [each["metadata"]["step"] for each in await views.history(thread, before=before)] == [0, -1]
    inputs = await views.history(thread, metadata={"source": "input"})
    assert [each["metadata"]["step"] for each in inputs] == [3, -1]
    early = CheckpointRef(checkpoint_id=history[5]["checkpoint_id"])
    assert (await views.state(thread, early))["values"]["said"] == ["a", "one"]
    with pytest.raises(NotFound):
        await views.state(thread, CheckpointRef(checkpoint_id="none"))


# --- changing ---------------------------------------------------------------------------------------------


async def test_a_state_is_changed(perdure: Perdure, views: NamespaceGraphs) -> None:
    thread = await thread_of(perdure)
    await perdure.run("asks", {"said": ["0"]}, thread_id=thread)
    made = await views.update_state(thread, {"said": ["told"]}, as_node="one")
    assert made["checkpoint"] == made["configurable"]
    shown = await perdure.threads.get_thread(thread)
    assert (shown.status, shown.values["said"], shown.interrupts) == (
        "interrupted",
        ["0", "one", "told"],
        [],
    )
    assert shown.checkpoint_id == made["checkpoint_id"]
    state = await views.state(thread)
    assert (state["next"], state["metadata"]["source"]) == (["asks"], "update")
    end = await perdure.run("asks", None, thread_id=thread)
    assert [each.value for each in end.interrupts] == ["well?"]
    await views.update_state(thread, {"answer": "mine"}, as_node="asks")
    done = await perdure.threads.get_thread(thread)
    assert (done.status, done.values["answer"]) == ("idle", "mine")
    kept = await perdure.threads.history(thread)
    assert kept[0].parent_id == made["checkpoint_id"]


async def test_a_fork_from_an_earlier_state(perdure: Perdure, views: NamespaceGraphs) -> None:
    thread = await thread_of(perdure)
    await perdure.run("steps", {"said": ["0"]}, thread_id=thread)
    early = next(each for each in await views.history(thread) if each["next"] == ["two"])
    place = CheckpointRef(checkpoint_id=early["checkpoint_id"])
    made = await views.update_state(thread, {"said": ["other"]}, as_node="one", checkpoint=place)
    end = await perdure.run("steps", None, thread_id=thread, checkpoint_id=made["checkpoint_id"])
    assert (end.run.status, end.values["said"]) == ("success", ["0", "one", "other", "two"])


async def test_the_service_draws_describes_and_changes(perdure: Perdure, views: NamespaceGraphs) -> None:
    service = GraphService(perdure.services.storage, views)
    assistant = await assistant_of(perdure, "steps")
    drawn = await service.drawing(assistant)
    assert [node["id"] for node in drawn.nodes][:2] == ["__start__", "one"]
    assert {"source": "__start__", "target": "one"} in drawn.edges
    schemas = await service.schemas(assistant)
    assert set((schemas.input_schema or {})["properties"]) == set(State.__annotations__)
    thread = await thread_of(perdure)
    await perdure.run("steps", {"said": ["0"]}, thread_id=thread)
    early = next(each for each in await views.history(thread) if each["next"] == ["two"])["checkpoint_id"]
    made = await service.update_state(thread, {"said": ["x"]}, as_node="one", checkpoint_id=early)
    state = await perdure.threads.get_state(thread)
    assert state is not None
    assert (state.checkpoint_id, state.parent_id, state.values["said"]) == (made, early, ["0", "one", "x"])
    for asked in (
        service.update_state("none", {}),
        service.update_state(thread, {}, checkpoint_id="none"),
    ):
        with pytest.raises(NotFound):
            await asked


async def test_an_update_that_does_not_fit(perdure: Perdure, views: NamespaceGraphs) -> None:
    thread = await thread_of(perdure)
    await perdure.run("steps", {"said": ["0"]}, thread_id=thread)
    before = await perdure.threads.get_thread(thread)
    for values, node in (({"said": ["x"]}, "nowhere"), ("no object", "one")):
        with pytest.raises(InvalidInput):
            await views.update_state(thread, values, as_node=node)
    assert (await perdure.threads.get_thread(thread)).checkpoint_id == before.checkpoint_id


async def test_a_busy_thread_is_left_alone(perdure: Perdure, views: NamespaceGraphs, graphs: Graphs) -> None:
    thread = await thread_of(perdure)
    request = RunRequest(assistant_id="slow", thread_id=thread, input={"said": ["0"]})
    run = await perdure.threads.create_run(request)
    assert await asyncio.to_thread(graphs.begun.wait, PATIENCE)
    # A node that the graph had before this run, or no node: the graph is not asked.
    for node in ("one", "nowhere"):
        with pytest.raises(Conflict, match="busy"):
            await views.update_state(thread, {"said": ["x"]}, as_node=node)
    with pytest.raises(Conflict, match="busy"):
        await views.supersteps(thread, [{"updates": [{"values": {"said": ["x"]}, "as_node": "nowhere"}]}])
    graphs.go_on.set()
    end = await perdure.threads.join_run(run.run_id, PATIENCE)
    assert end.values["said"] == ["0", "one", "waited", "two"]


async def test_supersteps(perdure: Perdure, views: NamespaceGraphs) -> None:
    thread = await thread_of(perdure, metadata={"graph_id": "asks"})
    made = await views.supersteps(
        thread,
        [
            {"updates": [{"values": {"said": ["in"]}, "as_node": "__input__"}]},
            {"updates": [{"values": {"said": ["in"]}, "as_node": "__start__"}]},
            {"updates": [{"values": {"said": ["one"]}, "as_node": "one"}]},
        ],
    )
    state = await views.state(thread)
    assert (state["checkpoint_id"], state["next"]) == (made["checkpoint_id"], ["asks"])
    assert state["values"]["said"] == ["in", "one"]
    assert len(await perdure.threads.history(thread)) == 3
    end = await perdure.run("asks", None, thread_id=thread)
    assert [each.value for each in end.interrupts] == ["well?"]
    end = await perdure.run("asks", thread_id=thread, command=RunCommand(resume="yes"))
    assert end.values["answer"] == "yes"
    with pytest.raises(InvalidInput):
        await views.supersteps(await thread_of(perdure), [{"updates": [{"values": {}}]}])


async def test_values_that_no_graph_made_are_updated_by_one(perdure: Perdure, views: NamespaceGraphs) -> None:
    thread = await thread_of(perdure, metadata={"graph_id": "steps"}, values={"said": ["native"]})
    assert (await views.state(thread))["values"] == {"said": ["native"]}
    await views.update_state(thread, {"said": ["more"]}, as_node="two")
    assert (await views.state(thread))["values"]["said"] == ["native", "more"]
    end = await perdure.run("steps", {"said": ["x"]}, thread_id=thread)
    assert end.values["said"] == ["native", "more", "x", "one", "two"]


# --- other agents, and graphs of workers ------------------------------------------------------------------


async def test_an_agent_that_is_no_graph(perdure: Perdure, views: NamespaceGraphs) -> None:
    thread = await thread_of(perdure)
    await perdure.run("plain", "x", thread_id=thread)
    state = await views.state(thread)
    assert (state["values"], state["next"], state["tasks"]) == ({"got": "x"}, [], [])
    made = await views.update_state(thread, {"got": "y"})
    assert (await views.state(thread))["checkpoint_id"] == made["checkpoint_id"]
    assert [each["values"] for each in await views.history(thread)] == [{"got": "y"}, {"got": "x"}]
    asking = await thread_of(perdure)
    await perdure.run("plain", "ask", thread_id=asking)
    state = await views.state(asking)
    (task,) = state["tasks"]
    assert (task["name"], [each["value"] for each in task["interrupts"]]) == ("plain", ["really?"])
    assistant = await assistant_of(perdure, "plain")
    drawn = await views.graph(assistant)
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "plain", "__end__"]
    assert (await views.schemas(assistant))["graph_id"] == "plain"
    assert await views.subgraphs(assistant) == {}


async def test_a_graph_that_is_elsewhere(perdure: Perdure, graphs: Graphs) -> None:
    thread = await thread_of(perdure)
    await perdure.run("asks", {"said": ["0"]}, thread_id=thread)
    for agents in (None, Agents()):
        views = views_of(perdure, agents)
        state = await views.state(thread)
        assert (state["values"]["said"], state["next"]) == (["0", "one"], ["asks"])
        assert [each["value"] for each in state["interrupts"]] == ["well?"]
        assert len(await views.history(thread)) == 3


# --- shapes -----------------------------------------------------------------------------------------------


async def test_the_shape_of_a_graph(perdure: Perdure, views: NamespaceGraphs) -> None:
    assistant = await assistant_of(perdure, "nested")
    drawn = await views.graph(assistant)
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "one", "inner", "__end__"]
    assert {"source": "one", "target": "inner"} in drawn["edges"]
    deep = await views.graph(assistant, xray=True)
    assert "inner:asks" in [node["id"] for node in deep["nodes"]]
    schemas = await views.schemas(assistant)
    assert schemas["graph_id"] == "nested"
    assert set(schemas["input_schema"]["properties"]) == set(State.__annotations__)
    assert set(schemas["state_schema"]["properties"]) == set(State.__annotations__)
    assert schemas["context_schema"] is None
    inner = await views.subgraphs(assistant)
    assert set(inner) == {"inner"}
    assert set(inner["inner"]) == set(schemas) - {"graph_id"}
    with pytest.raises(NotFound):
        await views.graph("00000000-0000-7000-8000-000000000000")


async def test_a_factory_knows_what_it_is_asked_for(tmp_path: Path) -> None:
    asked: list[str] = []

    def make(config: Any, runtime: ServerRuntime[Any]) -> Any:
        asked.append(runtime.access_context)
        asked.append("executes" if runtime.execution_runtime else config["configurable"]["graph_id"])
        builder = StateGraph(State)
        builder.add_node("one", lambda state: {"said": ["1"]})
        builder.add_edge(START, "one")
        return builder

    agents = Agents()
    agents.register("made", make)
    async with Perdure(f"sqlite:///{tmp_path}/views.db", agents=agents) as perdure:
        views = views_of(perdure, agents)
        await described(perdure, "made")
        asked.clear()
        thread = await thread_of(perdure)
        await perdure.run("made", {"said": ["0"]}, thread_id=thread)
        await views.state(thread)
        await views.update_state(thread, {"said": ["2"]}, as_node="one")
        await views.schemas(await assistant_of(perdure, "made"))
    assert asked == [
        "threads.create_run",
        "executes",
        "threads.read",
        "made",
        "threads.update",
        "made",
        "assistants.read",
        "made",
    ]
