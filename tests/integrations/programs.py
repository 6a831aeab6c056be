"""LangGraph programs as people write them; the tests run them on each checkpointer, unchanged."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    todos: list[dict[str, Any]]
    count: int


def talk() -> StateGraph[Any, Any, Any, Any]:
    """A chat that appends, edits a message in place, replaces a plain list and removes old messages."""

    def answer(state: Chat) -> Chat:
        number = state.get("count", 0) + 1
        todos = state.get("todos") or []
        for todo in todos:
            todo["done"] = True
        return {
            "messages": [AIMessage(f"answer {number}", id=f"answer-{number}")],
            "notes": [f"note {number}"],
            "todos": [*todos, {"name": f"todo {number}", "done": False}],
            "count": number,
        }

    def tidy(state: Chat) -> Chat:
        messages = state["messages"]
        messages[-1].response_metadata["seen"] = True
        changed: list[Any] = [messages[-1]]
        if len(messages) > 6:
            changed.append(RemoveMessage(id=str(messages[0].id)))
        return {"messages": changed}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_node("tidy", tidy)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "tidy")
    builder.add_edge("tidy", END)
    return builder


class Steps(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    left: int


def loop() -> StateGraph[Any, Any, Any, Any]:
    """One message a step, until none is left."""

    def step(state: Steps) -> Steps:
        number = len(state.get("messages", ()))
        message = AIMessage(f"This is what was said in step {number}.", id=f"m{number}")
        return {"messages": [message], "left": state.get("left", 0) - 1}

    builder = StateGraph(Steps)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["left"] > 0 else END)
    return builder


class Ask(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def ask() -> StateGraph[Any, Any, Any, Any]:
    """Asks twice in one node, then fans out, and joins."""

    def first(state: Ask) -> Ask:
        name = interrupt("name?")
        age = interrupt({"question": "age?", "name": name})
        return {"log": [name, age]}

    def part(state: Any) -> Ask:
        return {"log": [f"part {state['n']}"]}

    def last(state: Ask) -> Ask:
        return {"log": [f"in all {len(state['log'])}"]}

    builder = StateGraph(Ask)
    builder.add_node("first", first)
    builder.add_node("part", part)
    builder.add_node("last", last)
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", lambda _: [Send("part", {"n": n}) for n in range(3)], ["part"])
    builder.add_edge("part", "last")
    builder.add_edge("last", END)
    return builder


def nested() -> StateGraph[Any, Any, Any, Any]:
    """A graph in a graph in a graph, whose innermost asks."""

    def inner(state: Ask) -> Ask:
        return {"log": ["inner " + interrupt("inside?")]}

    def outer(state: Ask) -> Command[Any]:
        return Command(update={"log": ["outer"]}, goto="below")

    low = StateGraph(Ask)
    low.add_node("inner", inner)
    low.add_edge(START, "inner")
    middle = StateGraph(Ask)
    middle.add_node("low", low.compile())
    middle.add_edge(START, "low")
    builder = StateGraph(Ask)
    builder.add_node("outer", outer, destinations=("below",))
    builder.add_node("below", middle.compile())
    builder.add_edge(START, "outer")
    return builder


def _gather(state: list[Any], writes: Any) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


class Delta(TypedDict, total=False):
    log: Annotated[list[Any], DeltaChannel(_gather, snapshot_frequency=5)]
    left: int


def delta() -> StateGraph[Any, Any, Any, Any]:
    """A channel that is kept as changes, with a snapshot now and then."""

    def step(state: Delta) -> Delta:
        left = state["left"]
        return {"log": [f"step {left}"], "left": left - 1}

    builder = StateGraph(Delta)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["left"] > 0 else END)
    return builder


def hello(number: int = 1) -> dict[str, Any]:
    return {"messages": [HumanMessage(f"hello {number}", id=f"hello-{number}")]}
