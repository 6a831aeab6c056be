"""A conversation of many steps with a checkpointer: the same graph for ours and for LangGraph's own.

Only LangGraph is imported, because the peer runs this in its own environment.
"""

import time
from statistics import median
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

WORDS = "The weather will stay fine until the evening, and nobody expects it to change tomorrow. "
READS = 20
WINDOW = 20


class Talk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    recent: list[str]
    left: int


def _say(state: Talk) -> Talk:
    number = len(state["messages"])
    message = AIMessage(f"{number}: {WORDS * 3}", id=f"m{number}")
    return {"messages": [message], "left": state["left"] - 1}


def _note(state: Talk) -> Talk:
    notes = [*state.get("recent", []), f"{state['left']}: {WORDS}"]
    return {"recent": notes[-WINDOW:], "left": state["left"] - 1}


def _loop(step: Any) -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(Talk)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["left"] > 0 else END)
    return builder


def grow(saver: Any, steps: int) -> None:
    """Add one message per step; all of them stay."""
    graph = _loop(_say).compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "talk"}, "recursion_limit": steps + 5}
    said = graph.invoke({"messages": [HumanMessage("Go on.", id="go")], "left": steps}, config)
    if len(said["messages"]) != steps + 1:
        raise RuntimeError(f"{len(said['messages'])} messages after {steps} steps")


def read(saver: Any, steps: int) -> float:
    """Return the milliseconds to read a state of constant size after `steps` steps."""
    graph = _loop(_note).compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": f"window {steps}"}, "recursion_limit": steps + 5}
    graph.invoke({"left": steps}, config)
    taken = []
    for _ in range(READS):
        started = time.perf_counter()
        found = graph.get_state(config)
        taken.append(1000 * (time.perf_counter() - started))
        if len(found.values["recent"]) != min(steps, WINDOW):
            raise RuntimeError(f"{len(found.values['recent'])} notes after {steps} steps")
    return median(taken)
