"""A ReAct agent: a model that calls tools until it has an answer. One of the tools asks a person first.

The model is a script, so that the example needs no key and says the same each time. Put your own in its
place: `model = ChatAnthropic(...).bind_tools(TOOLS)`.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

BOOKINGS = Path(os.environ.get("BOOKINGS", "bookings.txt"))
EVENINGS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


@tool
async def find_evening(people: int) -> str:
    """Look through the calendar for a free evening."""
    tell = get_stream_writer()
    for evening in EVENINGS:
        tell({"looking_at": evening})
        await asyncio.sleep(0.5)
    return EVENINGS[-1]


@tool
def book_table(evening: str, people: int) -> str:
    """Book a table, if a person agrees."""
    answer = interrupt({"question": f"Book a table for {people} on {evening}?"})
    if answer != "yes":
        return f"not booked: {answer}"
    with BOOKINGS.open("a") as file:
        file.write(f"{evening} {people}\n")
    return f"booked for {evening}"


TOOLS = [find_evening, book_table]


class Script(BaseChatModel):
    """A model whose next words follow from what was said last."""

    @property
    def _llm_type(self) -> str:
        return "script"

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_reply(messages))])

    def _stream(
        self, messages: list[BaseMessage], *args: Any, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        reply = _reply(messages)
        for word in str(reply.content).split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word + " "))
        if reply.tool_calls:
            calls: list[Any] = [{**call, "type": "tool_call"} for call in reply.tool_calls]
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_calls=calls))


def _reply(messages: list[BaseMessage]) -> AIMessage:
    last = messages[-1]
    if isinstance(last, HumanMessage):
        return _call("I look for an evening.", "find_evening", people=4)
    if isinstance(last, ToolMessage) and last.name == "find_evening":
        return _call(f"{last.content} is free.", "book_table", evening=last.content, people=4)
    return AIMessage(f"It is {last.content}.")


def _call(words: str, name: str, **arguments: Any) -> AIMessage:
    return AIMessage(words, tool_calls=[{"name": name, "args": arguments, "id": f"call-{name}"}])


model = Script()


async def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = (
    StateGraph(MessagesState)
    .add_node("think", think)
    .add_node("tools", ToolNode(TOOLS))
    .add_edge(START, "think")
    .add_conditional_edges("think", tools_condition)
    .add_edge("tools", "think")
    .compile()
)
