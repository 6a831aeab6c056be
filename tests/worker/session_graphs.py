"""Graph that calls a model and a tool, in this process and in its own."""

from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.graph import START, StateGraph, add_messages
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


def calls(state: State) -> Any:
    content: Any = ["I look.", {"type": "tool_use", "id": "t-1", "name": "search", "input": {}}]
    return {
        "messages": AIMessage(
            content,
            tool_calls=[{"id": "t-1", "name": "search", "args": {"q": "Rome"}}],
            response_metadata={"model_name": "m-1"},
            usage_metadata={
                "input_tokens": 12,
                "output_tokens": 7,
                "total_tokens": 19,
                "input_token_details": {"cache_read": 7},
            },
        )
    }


def searches(state: State) -> Any:
    return {"messages": ToolMessage("Rome: Italy", tool_call_id="t-1", status="error")}


def answers(state: State) -> Any:
    return {"messages": AIMessage("In Italy.", response_metadata={"model_name": "m-1"})}


builder: Any = StateGraph(State)
builder.add_node("calls", calls)
builder.add_node("searches", searches)
builder.add_node("answers", answers)
builder.add_edge(START, "calls")
builder.add_edge("calls", "searches")
builder.add_edge("searches", "answers")
