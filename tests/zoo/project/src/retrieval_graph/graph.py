"""Finds documents of the user and answers with them."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.store.base import BaseStore

from retrieval_graph.configuration import Configuration
from retrieval_graph.state import InputState, State


async def generate_query(state: State) -> dict[str, list[str]]:
    return {"queries": [str(state.messages[-1].content)]}


async def retrieve(state: State, *, config: RunnableConfig, store: BaseStore) -> dict[str, Any]:
    configuration = Configuration.from_runnable_config(config)
    found = await store.asearch((configuration.prefix, configuration.user_id))
    return {"retrieved_docs": [Document(each.value["text"], id=each.key) for each in found]}


async def respond(state: State) -> dict[str, list[AIMessage]]:
    texts = sorted(each.page_content for each in state.retrieved_docs)
    return {"messages": [AIMessage(f"{state.queries[-1]}: {', '.join(texts)}")]}


builder: Any = StateGraph(State, input_schema=InputState)
for node in (generate_query, retrieve, respond):
    builder.add_node(node)
builder.add_edge("__start__", "generate_query")
builder.add_edge("generate_query", "retrieve")
builder.add_edge("retrieve", "respond")
graph = builder.compile(name="RetrievalGraph")
