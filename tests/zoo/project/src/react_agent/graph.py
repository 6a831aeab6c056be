"""A model and its tools, in a cycle."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import AIMessage, SystemMessage
from langgraph.graph import StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from models import Scripted, call, turns

from react_agent.context import Context
from react_agent.state import InputState, State
from react_agent.tools import TOOLS


async def call_model(state: State, runtime: Runtime[Context]) -> dict[str, list[AIMessage]]:
    answer = f"Found by {runtime.context.model}."
    model = Scripted(rule=turns(call("search", query="tea"), answer)).bind_tools(TOOLS)
    prompt = SystemMessage(runtime.context.system_prompt)
    response = await model.ainvoke([prompt, *state.messages])
    if state.is_last_step and response.tool_calls:
        return {"messages": [AIMessage("Sorry, no more steps.", id=response.id)]}
    return {"messages": [response]}


def route_model_output(state: State) -> Literal["__end__", "tools"]:
    last: Any = state.messages[-1]
    return "tools" if last.tool_calls else "__end__"


builder: Any = StateGraph(State, input_schema=InputState, context_schema=Context)
builder.add_node(call_model)
builder.add_node("tools", ToolNode(TOOLS))
builder.add_edge("__start__", "call_model")
builder.add_conditional_edges("call_model", route_model_output)
builder.add_edge("tools", "call_model")
graph = builder.compile(name="ReAct Agent")
