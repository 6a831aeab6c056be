"""The graph of the soak: a model that streams words, and a tool that asks a person if told to."""

from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

KEPT_MESSAGES = 12


@tool
def look_up(question: str) -> str:
    """Look something up, or ask a person."""
    if question.startswith("ask"):
        return f"a person said {interrupt({'question': question})}"
    return f"found {question}"


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
        call = {"name": "look_up", "args": {"question": str(last.content)}, "id": f"call-{len(messages)}"}
        return AIMessage("I look that up for you.", tool_calls=[call])
    answer = last.content if isinstance(last, ToolMessage) else "nothing"
    return AIMessage(f"The answer to your question is that I have {answer}.")


model = Script()


async def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model.ainvoke(state["messages"][-KEPT_MESSAGES:])]}


graph = (
    StateGraph(MessagesState)
    .add_node("think", think)
    .add_node("tools", ToolNode([look_up]))
    .add_edge(START, "think")
    .add_conditional_edges("think", tools_condition)
    .add_edge("tools", "think")
    .compile()
)
