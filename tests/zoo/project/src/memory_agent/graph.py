"""Notes what the model wants to remember, and shows it to the model in later threads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.graph import END, StateGraph, add_messages
from langgraph.runtime import Runtime
from models import Scripted, call, turns
from typing_extensions import TypedDict


@dataclass(kw_only=True)
class Context:
    user_id: str = "default"


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def call_model(state: State, runtime: Runtime[Context]) -> dict[str, Any]:
    assert runtime.store is not None
    known = await runtime.store.asearch(("memories", runtime.context.user_id), limit=10)
    memories = "; ".join(each.value["content"] for each in known)
    first = AIMessage(f"I know: {memories}") if memories else call("upsert_memory", content="likes tea")
    return {"messages": [await Scripted(rule=turns(first, "Noted.")).ainvoke(state["messages"])]}


async def store_memory(state: State, runtime: Runtime[Context]) -> dict[str, Any]:
    last: Any = state["messages"][-1]
    store: Any = runtime.store
    place = ("memories", runtime.context.user_id)
    await asyncio.gather(*(store.aput(place, each["id"], each["args"]) for each in last.tool_calls))
    return {"messages": [ToolMessage("stored", tool_call_id=each["id"]) for each in last.tool_calls]}


def route_message(state: State) -> Literal["store_memory", "__end__"]:
    last: Any = state["messages"][-1]
    return "store_memory" if last.tool_calls else END


builder: Any = StateGraph(State, context_schema=Context)
builder.add_node(call_model)
builder.add_node(store_memory)
builder.add_edge("__start__", "call_model")
builder.add_conditional_edges("call_model", route_message, ["store_memory", END])
builder.add_edge("store_memory", "call_model")
graph = builder.compile(name="MemoryAgent")
