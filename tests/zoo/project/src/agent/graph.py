"""One node, a state that is a dataclass with a default, and a context that is a TypedDict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langgraph.graph import StateGraph
from langgraph.runtime import Runtime
from typing_extensions import TypedDict


class Context(TypedDict):
    parameter: str


@dataclass
class State:
    changed: str = "example"


async def call_model(state: State, runtime: Runtime[Context]) -> dict[str, Any]:
    return {"changed": f"{state.changed} with {(runtime.context or {}).get('parameter')}"}


graph = (
    StateGraph(State, context_schema=Context)
    .add_node(call_model)
    .add_edge("__start__", "call_model")
    .compile(name="New Graph")
)
