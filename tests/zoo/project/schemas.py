"""Contexts, output schemas, private state, and inputs that a schema refuses."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict


class Seen(TypedDict, total=False):
    """What a node saw."""

    context: str
    configured: dict[str, Any]


@dataclasses.dataclass
class Settings:
    """A context whose fields have defaults."""

    model: str = "small"
    turns: int = 3


class Checked(BaseModel):
    """A context with a field that must be given."""

    limit: int
    model: str = "small"


def _report(state: Seen, runtime: Runtime[Any], config: RunnableConfig) -> Seen:
    known = config["configurable"]
    wanted = ("user_id", "langgraph_request_id")
    return {"context": repr(runtime.context), "configured": {key: known.get(key) for key in wanted}}


def _with_context(schema: Any) -> Any:
    builder: Any = StateGraph(Seen, context_schema=schema)
    builder.add_node("report", _report)
    builder.add_edge(START, "report")
    builder.add_edge("report", END)
    return builder.compile()


with_defaults = _with_context(Settings)
with_required = _with_context(Checked)


# --- output and private state -----------------------------------------------------------------------------


class Question(TypedDict):
    question: str


class Answer(TypedDict):
    answer: str


class Overall(TypedDict, total=False):
    question: str
    answer: str
    notes: str


class Private(TypedDict):
    thought: str


def _think(state: Overall) -> Private:
    return {"thought": f"about {state['question']}", "notes": "n"}  # type: ignore[typeddict-unknown-key]


def _ask(state: Private) -> Overall:
    return {"answer": f"{state['thought']}: {interrupt('sure?')}"}


_builder = StateGraph(Overall, input_schema=Question, output_schema=Answer)
_builder.add_node("think", _think)
_builder.add_node("ask", _ask)
_builder.add_edge(START, "think")
_builder.add_edge("think", "ask")
_builder.add_edge("ask", END)
shy = _builder.compile()


# --- a state that refuses its input, and durations --------------------------------------------------------


class Strict(BaseModel):
    count: int
    waited: timedelta = timedelta(0)


def _wait(state: Strict) -> dict[str, Any]:
    return {"waited": timedelta(seconds=state.count + 0.5)}


_strict = StateGraph(Strict)
_strict.add_node("wait", _wait)
_strict.add_edge(START, "wait")
_strict.add_edge("wait", END)
strict = _strict.compile()
