"""Projects in the layouts of the public templates, through the client."""

from __future__ import annotations

from typing import Any

from langgraph_sdk.client import LangGraphClient
from tests.zoo.test_agents import said


async def test_a_new_project(client: LangGraphClient) -> None:
    assert await client.runs.wait(None, "new_project", input={}) == {"changed": "example with None"}
    given: Any = await client.runs.wait(
        None, "new_project", input={"changed": "mine"}, context={"parameter": "p"}
    )
    assert given == {"changed": "mine with p"}


async def test_a_react_agent(client: LangGraphClient) -> None:
    ended: Any = await client.runs.wait(None, "react_agent", input=said("tea?"))
    assert [each["type"] for each in ended["messages"]] == ["human", "ai", "tool", "ai"]
    assert '"max_search_results": 10' in ended["messages"][2]["content"]
    assert ended["messages"][-1]["content"] == "Found by scripted/small."
    few: Any = await client.runs.wait(
        None,
        "react_agent",
        input=said("tea?"),
        context={"max_search_results": 2, "model": "scripted/large"},
        config={"recursion_limit": 2},
        raise_error=False,
    )
    assert few["messages"][-1]["content"] == "Sorry, no more steps."
    assistant: Any = await client.assistants.create("react_agent", context={"model": "scripted/own"})
    own: Any = await client.runs.wait(None, assistant["assistant_id"], input=said("tea?"))
    assert own["messages"][-1]["content"] == "Found by scripted/own."


async def test_retrieval(client: LangGraphClient, mark: str) -> None:
    config: Any = {"configurable": {"user_id": mark}}
    given: Any = {"docs": [{"page_content": "tea"}, {"page_content": "cake"}]}
    stored: Any = await client.runs.wait(None, "indexer", input=given, config=config)
    assert stored == {"docs": []}
    found: Any = await client.runs.wait(None, "retrieval", input=said("food"), config=config)
    assert found["messages"][-1]["content"] == "food: cake, tea"
    assert sorted(each["page_content"] for each in found["retrieved_docs"]) == ["cake", "tea"]


async def test_a_memory_agent(client: LangGraphClient, mark: str) -> None:
    first: Any = await client.runs.wait(None, "memory_agent", input=said("hello"), context={"user_id": mark})
    assert first["messages"][-1]["content"] == "Noted."
    second: Any = await client.runs.wait(None, "memory_agent", input=said("hello"), context={"user_id": mark})
    assert second["messages"][-1]["content"] == "I know: likes tea"
