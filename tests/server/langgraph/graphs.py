"""The graphs for tests of the LangGraph protocol. Each does the same in every run."""

from __future__ import annotations

import asyncio
import operator
import time
from pathlib import Path
from typing import Annotated, Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from typing_extensions import TypedDict

POLL_SECONDS = 0.01


class State(TypedDict, total=False):
    """The input of most of these graphs."""

    n: int
    log: Annotated[list[str], operator.add]


class Settings(TypedDict, total=False):
    """The context of a run."""

    name: str


def _builder(**nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    """Build a graph with consecutive nodes."""
    builder = StateGraph(State, context_schema=Settings)
    for name, node in nodes.items():
        builder.add_node(name, node)
    for one, other in zip([START, *nodes], [*nodes, END], strict=True):
        builder.add_edge(one, other)
    return builder


# --- nothing, and three steps -----------------------------------------------------------------------------


async def _nothing(state: State) -> dict[str, Any]:
    return {}


noop = _builder(nothing=_nothing).compile()


def _step(name: str) -> Any:
    async def step(state: State) -> dict[str, Any]:
        return {"n": state.get("n", 0) + 1, "log": [name]}

    return step


steps = _builder(one=_step("one"), two=_step("two"), three=_step("three")).compile()


# --- messages ---------------------------------------------------------------------------------------------


class Chat(TypedDict):
    """Only messages."""

    messages: Annotated[list[AnyMessage], add_messages]


async def _answer(state: Chat) -> dict[str, Any]:
    model = GenericFakeChatModel(messages=iter([AIMessage("hello there friend", id="answer-1")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


_chat = StateGraph(Chat)
_chat.add_node("answer", _answer)
_chat.add_edge(START, "answer")
_chat.add_edge("answer", END)
chat = _chat.compile()


# --- questions to a person --------------------------------------------------------------------------------


async def _ask(state: State) -> dict[str, Any]:
    return {"log": [f"approved: {interrupt({'question': 'go on?'})}"]}


approval = _builder(before=_step("before"), ask=_ask, after=_step("after")).compile()


# --- a graph in a graph -----------------------------------------------------------------------------------

inner = _builder(inner_one=_step("inner_one"), inner_two=_step("inner_two")).compile()
asking = _builder(inner_before=_step("inner_before"), ask=_ask).compile()
nested_approval = _builder(outer=_step("outer"), sub=asking, last=_step("last")).compile()
nested = _builder(outer=_step("outer"), sub=inner, last=_step("last")).compile()


# --- failures, slowness, and context ----------------------------------------------------------------------


async def _fail(state: State) -> dict[str, Any]:
    raise ValueError("this graph always fails")


failing = _builder(first=_step("first"), fail=_fail).compile()


class Waiting(TypedDict, total=False):
    """Continues after a file exists."""

    until: str
    n: int
    log: Annotated[list[str], operator.add]


async def _wait(state: Waiting) -> dict[str, Any]:
    # Another process creates the file, without a notification.
    while not Path(state["until"]).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(POLL_SECONDS)
    return {"log": ["waited"]}


_slow = StateGraph(Waiting)
_slow.add_node("before", _step("before"))
_slow.add_node("wait", _wait)
_slow.add_node("after", _step("after"))
_slow.add_edge(START, "before")
_slow.add_edge("before", "wait")
_slow.add_edge("wait", "after")
_slow.add_edge("after", END)
slow = _slow.compile()


async def _tell(state: State, runtime: Runtime[Settings]) -> dict[str, Any]:
    return {"log": [f"name={(runtime.context or {}).get('name')}"]}


given = _builder(tell=_tell).compile()


async def plain(ctx: Any, input: Any) -> Any:
    """An agent that is not a graph."""
    return {"echo": input}


# --- many events, and many steps --------------------------------------------------------------------------


async def _events(state: State) -> dict[str, Any]:
    write = get_stream_writer()
    for number in range(state.get("n", 0)):
        write({"number": number})
    return {"log": ["told"]}


telling = _builder(tell=_events).compile()


class Stairs(TypedDict, total=False):
    """A series of steps, each recorded in a file; one of them waits for a gate."""

    n: int
    top: int
    stop_at: int
    trace: str
    gate: str


async def _climb(state: Stairs) -> dict[str, Any]:
    number = state.get("n", 0) + 1
    with Path(state["trace"]).open("a") as trace:  # noqa: ASYNC230 - a line in a file takes no time
        trace.write(f"{number}\n")
    while number == state["stop_at"] and not Path(state["gate"]).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(POLL_SECONDS)
    get_stream_writer()({"step": number})
    return {"n": number}


def _higher(state: Stairs) -> str:
    return "climb" if state["n"] < state["top"] else END


_stairs = StateGraph(Stairs)
_stairs.add_node("climb", _climb)
_stairs.add_edge(START, "climb")
_stairs.add_conditional_edges("climb", _higher, ["climb", END])
stairs = _stairs.compile()


# --- the store --------------------------------------------------------------------------------------------


async def _remember(state: State, runtime: Runtime[Any]) -> dict[str, Any]:
    assert runtime.store is not None
    place = ("remembered", (runtime.context or {}).get("name", "nobody"))
    known = await runtime.store.aget(place, "n")
    before = known.value["n"] if known else 0
    await runtime.store.aput(place, "n", {"n": before + state.get("n", 0)})
    return {"log": [f"had {before}"]}


remembering = _builder(remember=_remember).compile()


# --- temporary errors -------------------------------------------------------------------------------------


class Attempts(TypedDict, total=False):
    """Fails with temporary errors this many times."""

    n: int
    trace: str
    failures: int
    log: Annotated[list[str], operator.add]


async def _stumble(state: Attempts) -> dict[str, Any]:
    with Path(state["trace"]).open("a+") as trace:  # noqa: ASYNC230 - a line in a file takes no time
        trace.write("tried\n")
        trace.seek(0)
        if len(trace.readlines()) <= state["failures"]:
            raise ConnectionError("nobody answers")
    return {"log": ["stood"]}


_stumbling = StateGraph(Attempts)
_stumbling.add_node("before", _step("before"))
_stumbling.add_node("stumble", _stumble)
_stumbling.add_edge(START, "before")
_stumbling.add_edge("before", "stumble")
_stumbling.add_edge("stumble", END)
stumbling = _stumbling.compile()


# --- a reducer that waits ---------------------------------------------------------------------------------


def _pass(before: list[str], given: list[str]) -> list[str]:
    """Signal the start by a file, and wait for another."""
    for begun, gate in [given] if given else ():
        Path(begun).touch()
        while not Path(gate).exists():
            time.sleep(POLL_SECONDS)
    return given


class Gated(TypedDict, total=False):
    """A state that is updated after a file exists."""

    log: Annotated[list[str], operator.add]
    gate: Annotated[list[str], _pass]


_gated = StateGraph(Gated)
_gated.add_node("one", _nothing)
_gated.add_edge(START, "one")
_gated.add_edge("one", END)
gated = _gated.compile()
