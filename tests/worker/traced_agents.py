"""Agents whose traces tests read, in this process and in their own processes."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from perdure.worker.registry import Agents

SECRET = "the code is 4711"


@tool
async def weather(city: str) -> str:
    """Look up the weather of a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return f"sunny in {city}"


class ScriptedModel(FakeMessagesListChatModel):
    """Model that answers first with a tool call, then with a text."""

    model_name: str = "scripted-1"


def model_for(city: str) -> ScriptedModel:
    call = {"name": "weather", "args": {"city": city}, "id": "call-1", "type": "tool_call"}
    usage: Any = {"input_tokens": 11, "output_tokens": 3, "total_tokens": 14}
    asked = AIMessage(
        "", tool_calls=[call], usage_metadata=usage, response_metadata={"model_name": "scripted-1-0711"}
    )
    told: Any = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25}
    answer = AIMessage(f"It is fine. {SECRET}", usage_metadata=told, id="answer-1")
    return ScriptedModel(responses=[asked, answer])


def react(city: str = "Rome") -> Any:
    """Graph that calls a model, a tool, and the model again."""
    model = model_for(city)

    async def think(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def route(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if getattr(last, "tool_calls", None) else END

    builder: Any = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode([weather], handle_tool_errors=False))
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", route)
    builder.add_edge("tools", "think")
    return builder


in_rome = react()


async def asks(state: MessagesState) -> Any:
    return {"messages": [AIMessage(interrupt("well?"))]}


def asking() -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("asks", asks)
    builder.add_edge(START, "asks")
    return builder


async def steps(ctx: Any, input: Any) -> Any:
    """Two steps, one inside the other, with spans of the agent's own tracer around and inside."""

    async def inner() -> int:
        with ctx.tracer.start_as_current_span("own, inside"):
            return 1

    async def outer() -> int:
        return 1 + int(await ctx.step("inner", inner))

    with ctx.tracer.start_as_current_span("own, outside"):
        found = await ctx.step("outer", outer)
        await ctx.step("after", lambda: None)
    if input == "fail":
        await ctx.step("failing", _fail)
    return {"found": found, "resources": bool(await ctx.resources())}


async def _fail() -> None:
    raise ValueError(SECRET)


async def calls_model(ctx: Any, input: Any) -> Any:
    """Model without a graph, in a step and outside."""
    answer = await ctx.step("model", lambda: _answer())
    await _answer()
    await ctx.step("after", lambda: None)
    return {"answer": answer}


async def _answer() -> str:
    found = await model_for("Rome").ainvoke([("user", "hello")])
    return str(found.tool_calls[0]["name"])


def agents() -> Agents:
    found = Agents()
    found.register("react", react())
    found.register("sunk", react("Atlantis"))
    found.register("asking", asking())
    found.register("steps", steps)
    found.register("calls_model", calls_model)
    return found
