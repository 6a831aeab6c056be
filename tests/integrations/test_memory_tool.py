"""Memory as a LangGraph tool: in graphs that perdure executes, and in programs of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from tests.integrations.memory_graph import graph, graph_with
from tests.kernel.support import until_true
from tests.server.native.support import housed

from perdure import Agents, InMemoryLightningStore, Perdure
from perdure.agents.commands import isolated
from perdure.integrations.langgraph import MemoryTool
from perdure.kernel.errors import InvalidInput
from perdure.kernel.ids import derived_ulid
from perdure.memory.index import MemoryIndexer
from perdure.memory.records import NewMemoryEvent, SearchResult

ROOT = Path(__file__).parents[2]
EVENT = NewMemoryEvent(
    event_id=derived_ulid(1_705_312_800_000, "a"),
    session_id="talk",
    text="The zebra was renamed to horse",
    agent="zoo",
)
TOLD = f"[1] 2024-01-15 10:00 UTC, event, agent zoo\n{EVENT.text}\nevents: {EVENT.event_id}"
QUESTION = {"messages": [{"role": "user", "content": "zebra"}]}


async def remember(perdure: Perdure) -> None:
    await perdure.memory.ingest(EVENT)

    async def indexed() -> bool:
        return bool((await perdure.memory.search("zebra")).items)

    await until_true(indexed)


async def test_graphs_that_perdure_executes_search_the_memory_of_their_run(tmp_path: Path) -> None:
    agents = Agents()
    agents.register("here", graph)
    agents.register("apart", isolated("tests.integrations.memory_graph:graph", directory=ROOT))
    async with Perdure(f"sqlite:///{tmp_path}/a.db", agents=agents) as perdure:
        await remember(perdure)
        for name in ("here", "apart"):
            end = await perdure.run(name, QUESTION)
            assert end.run.status == "success", end
            assert end.values["messages"][-1]["content"] == f"Memory says: {TOLD}"
        # A graph of one's own, with and without an event loop.
        own = graph_with(MemoryTool(perdure))
        assert_told(await own.ainvoke(QUESTION))
        assert_told(await asyncio.to_thread(own.invoke, QUESTION))


def assert_told(values: dict[str, Any]) -> None:
    (message,) = [each for each in values["messages"] if isinstance(each, ToolMessage)]
    assert message.content == TOLD
    assert isinstance(message.artifact, SearchResult)
    assert [cited.event_id for hit in message.artifact.items for cited in hit.events] == [EVENT.event_id]


async def test_a_program_searches_the_memory_of_a_server() -> None:
    async with InMemoryLightningStore() as store, housed(store) as house:
        services = house.visitor.app.services
        await services.memory.ingest(EVENT)
        await MemoryIndexer(services.storage).index(await services.memory.ns())
        tool = MemoryTool(house.client, name="recall", mode="text")
        assert await tool.ainvoke({"query": "zebra"}) == TOLD
        assert await asyncio.to_thread(tool.invoke, {"query": "zebra"}) == TOLD
        for filters in ({"agent": "nobody"}, {"kind": "node"}, {"until": "2020-01-01T00:00:00"}):
            assert await tool.ainvoke({"query": "zebra", **filters}) == "Memory has nothing about that."
        # What the model gets wrong is told to the model.
        assert "agent" in await tool.ainvoke({"query": "zebra", "agent": "a" * 5000})


async def test_without_a_run_and_without_a_source_the_model_is_told(tmp_path: Path) -> None:
    for values in (await graph.ainvoke(QUESTION), await asyncio.to_thread(graph.invoke, QUESTION)):
        assert "there is no memory here" in values["messages"][-1].content
    with pytest.raises(InvalidInput, match="must have a memory"):
        MemoryTool(object())  # type: ignore[arg-type]
