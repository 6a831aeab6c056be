"""The functional API, `Send`, commands to a parent, and subgraphs."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict
from values import Point, chain


@task
async def write(topic: str) -> str:
    return f"about {topic}"


@entrypoint()
async def functional(inputs: dict[str, Any], *, previous: Any = None) -> Any:
    drafts = [write(topic) for topic in inputs["topics"]]
    texts = [await each for each in drafts]
    verdict = interrupt({"drafts": texts})
    count = (previous or 0) + 1
    return entrypoint.final(value={"texts": texts, "verdict": verdict, "count": count}, save=count)


# --- Send -------------------------------------------------------------------------------------------------


class Work(TypedDict, total=False):
    items: list[int]
    done: Annotated[list[int], operator.add]
    at: Point


def spread(state: Work) -> list[Send]:
    return [Send("square", {"at": Point(each, each)}) for each in state["items"]]


def square(state: Work) -> Work:
    return {"done": [state["at"].x * state["at"].y]}


_map: Any = StateGraph(Work)
_map.add_node("square", square)
_map.add_conditional_edges(START, spread, ["square"])
_map.add_edge("square", END)
sending = _map.compile()


# --- a command to the parent ------------------------------------------------------------------------------


class Steps(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def leave(state: Steps) -> Command[Any]:
    return Command(goto="after", update={"log": ["left the inner graph"]}, graph=Command.PARENT)


def after(state: Steps) -> Steps:
    return {"log": ["after"]}


_parent: Any = StateGraph(Steps)
_parent.add_node("inner", chain(Steps, leave))
_parent.add_node("after", after)
_parent.add_edge(START, "inner")
_parent.add_edge("after", END)
to_parent = _parent.compile()


# --- subgraphs that ask -----------------------------------------------------------------------------------


def ask(state: Steps) -> Steps:
    return {"log": [f"answer {interrupt('which one?')}"]}


def close(state: Steps) -> Steps:
    return {"log": ["closed"]}


_outer: Any = StateGraph(Steps)
_outer.add_node("inner", chain(Steps, ask))
_outer.add_node("close", close)
_outer.add_edge(START, "inner")
_outer.add_edge("inner", "close")
_outer.add_edge("close", END)
asking_inside = _outer.compile()
