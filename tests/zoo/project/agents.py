"""Agents of the packages that people build with."""

from __future__ import annotations

import warnings
from typing import Any

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
)
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from langmem import create_manage_memory_tool, create_search_memory_tool
from langmem.short_term import RunningSummary, SummarizationNode
from models import Scripted, call, turns

warnings.simplefilter("ignore")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


_adding = Scripted(rule=turns(call("add", a=2, b=3), "It is 5."))

react = create_react_agent(_adding, [add], name="react")


# --- create_agent and its middlewares ---------------------------------------------------------------------

approving = create_agent(
    Scripted(rule=turns(call("send_mail", to="ada@example.org"), "Done.")),
    [send_mail],
    middleware=[
        HumanInTheLoopMiddleware(interrupt_on={"send_mail": True}),
        PIIMiddleware("email", strategy="redact", apply_to_input=True),
    ],
)

summarizing = create_agent(
    Scripted(rule=lambda messages: AIMessage(f"{len(messages)} messages")),
    [],
    middleware=[
        SummarizationMiddleware(
            Scripted(rule=lambda messages: AIMessage("a summary")),
            trigger=("messages", 5),
            keep=("messages", 2),
        )
    ],
)

_again = Scripted(rule=lambda messages: call("add", number=len(messages), a=len(messages), b=1))

limited = create_agent(_again, [add], middleware=[ModelCallLimitMiddleware(run_limit=3, exit_behavior="end")])

rationed = create_agent(
    _again,
    [add],
    middleware=[ToolCallLimitMiddleware(run_limit=2, exit_behavior="end"), TodoListMiddleware()],
)


# --- many agents ------------------------------------------------------------------------------------------


def _delegating(messages: Any) -> AIMessage:
    names = [each.name for each in messages if isinstance(each, AIMessage)]
    return AIMessage("The expert says 5.") if "expert" in names else call("transfer_to_expert")


supervised = create_supervisor(
    [create_react_agent(_adding, [add], name="expert")], model=Scripted(rule=_delegating)
).compile()

_to_bob = create_handoff_tool(agent_name="bob", description="Ask Bob.")
swarm = create_swarm(
    [
        create_react_agent(Scripted(rule=lambda messages: call("transfer_to_bob")), [_to_bob], name="alice"),
        create_react_agent(Scripted(rule=lambda messages: AIMessage("Bob here.")), [add], name="bob"),
    ],
    default_active_agent="alice",
).compile()

deep = create_deep_agent(
    model=Scripted(
        rule=turns(
            call("write_todos", todos=[{"content": "write", "status": "in_progress"}]),
            call("write_file", file_path="/notes.txt", content="five"),
            call("read_file", file_path="/notes.txt"),
            "The notes say five.",
        )
    ),
    tools=[add],
)


# --- memory -----------------------------------------------------------------------------------------------

_memory = ("memories", "{langgraph_user}")


def _remembering(messages: Any) -> AIMessage:
    asked = [each for each in messages if isinstance(each, HumanMessage)][-1]
    steps = turns(call("search_memory", query="tea"), "I looked it up.")
    if "remember" in str(asked.content):
        steps = turns(call("manage_memory", content="Ada likes tea", action="create"), "Noted.")
    return steps(messages)


langmem = create_react_agent(
    Scripted(rule=_remembering),
    [create_manage_memory_tool(namespace=_memory), create_search_memory_tool(namespace=_memory)],
)


class _Conversation(MessagesState):
    context: dict[str, RunningSummary]
    shortened: list[AnyMessage]


async def _answer(state: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [AIMessage(f"{len(state['shortened'])} messages")]}


_builder: Any = StateGraph(_Conversation)
_builder.add_node(
    "shorten",
    SummarizationNode(
        token_counter=lambda messages: 10 * len(messages),
        model=Scripted(rule=lambda messages: AIMessage("a summary")),
        max_tokens=50,
        max_tokens_before_summary=30,
        max_summary_tokens=10,
        output_messages_key="shortened",
    ),
)
_builder.add_node("answer", _answer)
_builder.add_edge(START, "shorten")
_builder.add_edge("shorten", "answer")
_builder.add_edge("answer", END)
shortening = _builder.compile()
