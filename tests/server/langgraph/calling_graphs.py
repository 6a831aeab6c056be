"""Graphs that read their request, or call the server that runs them."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_client


class State(TypedDict, total=False):
    """The results of calls."""

    seen: Any


def _graph(node: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("look", node)
    builder.add_edge(START, "look")
    builder.add_edge("look", END)
    return builder.compile()


async def _look(state: State, config: RunnableConfig) -> State:
    plain = {key: value for key, value in config["configurable"].items() if isinstance(value, str | int)}
    return {"seen": plain}


configured = _graph(_look)

early = get_client()
"""Created before the server starts."""


async def _ask(state: State) -> State:
    async with get_client() as client:
        found = await client.runs.wait(None, "steps", input={"n": 0})
        thread = await early.threads.create(metadata={"made": "by a node"})
        parts = [
            part.event
            async for part in client.runs.stream(
                thread["thread_id"], "steps", input={"n": 0}, stream_mode="updates"
            )
        ]
        await early.store.put_item(["notes"], "one", {"text": "kept"})
        kept = await client.store.get_item(["notes"], "one")
    return {"seen": {"final": found, "events": parts, "kept": kept["value"], "thread": thread["thread_id"]}}


asking = _graph(_ask)


def _ask_in_a_thread(state: State) -> State:
    async def ask() -> Any:
        async with get_client() as client:
            return await client.assistants.search(graph_id="steps")

    return {"seen": [each["graph_id"] for each in asyncio.run(ask())]}


asking_in_a_thread = _graph(_ask_in_a_thread)


class Counted(TypedDict, total=False):
    """The state of `steps`, which is called from here."""

    n: int
    log: Annotated[list[str], operator.add]


def _remote(config: Any = None) -> Any:
    """Build a graph with one node that is another graph on this server."""
    builder = StateGraph(Counted)
    builder.add_node("away", RemoteGraph("steps", client=get_client(), config=config))
    builder.add_edge(START, "away")
    builder.add_edge("away", END)
    return builder.compile()


remote = _remote()
