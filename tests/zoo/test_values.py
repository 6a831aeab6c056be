"""Values of every kind keep their class through an interrupt, and callers can give none."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph_sdk.client import LangGraphClient
from tests.server.langgraph.run_support import new_thread
from tests.zoo.conftest import PROJECT

from perdure.agents.loading import import_target


async def test_values_keep_their_class(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    asked: Any = await client.runs.wait(thread_id, "values", input={})
    assert asked["__interrupt__"][0]["value"] == "go on?"
    ended: Any = await client.runs.wait(thread_id, "values", command={"resume": "yes"})
    graph = import_target("./values.py:values", PROJECT)
    graph = graph.copy({"checkpointer": InMemorySaver()})
    config: Any = {"configurable": {"thread_id": "here"}}
    graph.invoke({}, config)
    expected = graph.invoke(import_target("langgraph.types:Command")(resume="yes"), config)
    assert ended["classes"] == expected["classes"]
    assert ended["classes"][0]["anything"] == ["list", "Point", "Color", "Level", "Pair"]
    assert ended["anything"] == [{"x": 3, "y": 4}, "red", "high", {"first": 1, "second": "b"}]
    assert (await client.threads.get_state(thread_id))["values"] == ended
    shown = {key: ended[key] for key in ("point", "moment", "day", "hour", "duration", "raw", "tags", "key")}
    assert shown == {
        "point": {"x": 1, "y": 2},
        "moment": "2026-01-02T03:04:05Z",
        "day": "2026-01-02",
        "hour": "03:04:00",
        "duration": 60.0,
        "raw": "AP8=",
        "tags": ["one"],
        "key": "00000000-0000-0000-0000-000000000001",
    }


async def test_what_a_caller_sends_is_never_revived(client: LangGraphClient) -> None:
    """Not by the names that LangChain and LangGraph mark objects with."""
    given: Any = [
        {"lc": 2, "type": "constructor", "id": ["perdure_agent_values", "Point"], "kwargs": {"x": 1, "y": 2}},
        {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "Document"], "kwargs": {}},
        {"lc": 1, "type": "secret", "id": ["HOME"]},
    ]
    thread_id = await new_thread(client)
    await client.runs.wait(thread_id, "echoing", input={"anything": given})
    ended: Any = await client.runs.wait(thread_id, "echoing", command={"resume": "yes"})
    assert ended["anything"] == given
    assert set(map(str, map(type, given))) == {"<class 'dict'>"}
    assert all(isinstance(each, dict) for each in ended["classes"][0][1:])


async def test_a_state_that_cannot_be_stored_is_refused_with_a_sentence(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    ended: Any = await client.runs.wait(thread_id, "unstorable", input={}, raise_error=False)
    assert ended["__error__"]["error"] == "TypeError"
    assert "a state cannot be stored: " in ended["__error__"]["message"]
    assert "lock is not serializable" in ended["__error__"]["message"]
    assert (await client.threads.get_state(thread_id))["next"] == ["lock"]


async def test_dataframes_are_stored_by_arrow(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    asked: Any = await client.runs.wait(thread_id, "frames", input={})
    assert asked["anything"] == {"columns": ["size", "on"], "rows": 2}
    assert asked["listed"] == [{"frame": {"columns": ["name", "size", "on"], "rows": 2}}]
    ended: Any = await client.runs.wait(thread_id, "frames", command={"resume": "yes"})
    assert ended["classes"] == ["DataFrame", ["name", "size", "on"], 1.5]
    assert (await client.threads.get_state(thread_id))["values"] == ended
    refused: Any = await client.runs.wait(None, "unstorable_frame", input={}, raise_error=False)
    assert refused["__error__"]["error"] == "TypeError"
    assert "a state cannot be stored: " in refused["__error__"]["message"]
    assert "did not recognize Python value type" in refused["__error__"]["message"]
