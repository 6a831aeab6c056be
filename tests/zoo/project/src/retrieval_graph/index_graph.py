"""Stores documents of a user, and forgets them in its state."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.store.base import BaseStore

from retrieval_graph.configuration import Configuration
from retrieval_graph.state import IndexState


async def index_docs(state: IndexState, *, config: RunnableConfig, store: BaseStore) -> dict[str, Any]:
    configuration = Configuration.from_runnable_config(config)
    for each in state.docs:
        place = (configuration.prefix, configuration.user_id)
        await store.aput(place, each.metadata["id"], {"text": each.page_content})
    return {"docs": "delete"}


builder: Any = StateGraph(IndexState)
builder.add_node(index_docs)
builder.add_edge("__start__", "index_docs")
graph = builder.compile(name="IndexGraph")
