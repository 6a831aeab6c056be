"""Graphs for tests, in the worker's process and in their own processes."""

from __future__ import annotations

import asyncio
import operator
import threading
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import interrupt
from typing_extensions import TypedDict

from perdure.worker.registry import Agents


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]
    answer: str


class Graphs:
    """Graphs of a few steps, with a record of what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.agents = Agents()
        self.agents.register("steps", self._chain(one=self._does("one"), two=self._does("two")))
        self.agents.register("asks", self._chain(one=self._does("one"), asks=self._asks))
        self.agents.register(
            "slow", self._chain(one=self._does("one"), wait=self._wait, two=self._does("two"))
        )
        self.agents.register("fails", self._chain(one=self._does("one"), fails=self._fails))
        self.agents.register("talks", self._chain(talks=self._talks))
        inner = self._chain(asks=self._asks).compile()
        self.agents.register("nested", self._chain(one=self._does("one"), inner=inner))

    def _chain(self, **nodes: Any) -> Any:
        builder: Any = StateGraph(State)
        last = START
        for name, node in nodes.items():
            builder.add_node(name, node)
            builder.add_edge(last, name)
            last = name
        return builder

    def _does(self, name: str) -> Any:
        async def node(state: State) -> Any:
            self.done.append(name)
            return {"said": [name]}

        return node

    async def _asks(self, state: State) -> Any:
        return {"answer": interrupt("well?")}

    async def _wait(self, state: State) -> Any:
        self.done.append("wait")
        self.begun.set()
        await asyncio.to_thread(self.go_on.wait, 30)
        return {"said": ["waited"]}

    async def _fails(self, state: State) -> Any:
        raise ValueError("bad node")

    async def _talks(self, state: State) -> Any:
        return {"messages": [AIMessage("x" * 1000, id=str(len(state.get("messages", []))))]}


alone = Graphs().agents
"""Agents with their own graphs, for isolated processes."""


class Counting(TypedDict, total=False):
    count: int
    answer: str


def counting() -> Any:
    """Graph that counts and asks a question."""
    builder = StateGraph(Counting)
    builder.add_node("count", lambda state: {"count": state.get("count", 0) + 1})
    builder.add_node("ask", lambda state: {"answer": interrupt("well?")})
    builder.add_edge(START, "count")
    builder.add_edge("count", "ask")
    return builder.compile()
