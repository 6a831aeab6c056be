"""A graph with memory as a tool, made before there is any run."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.prebuilt import create_react_agent
from tests.zoo.project.models import Scripted, call

from perdure.integrations.langgraph import MemoryTool


def recalling(messages: Sequence[BaseMessage]) -> AIMessage:
    """Search memory for the question, and answer with what it gave."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(f"Memory says: {last.content}")
    return call("search_memory", query=str(last.content), since="2020-01-01", limit=3)


def graph_with(tool: MemoryTool) -> Any:
    with warnings.catch_warnings():
        # It moved to the package langchain, and is what most programs still use.
        warnings.simplefilter("ignore")
        return create_react_agent(Scripted(rule=recalling), [tool])


graph = graph_with(MemoryTool())
