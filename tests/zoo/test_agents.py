"""Agents of the packages that people build with: the same messages as from LangGraph alone."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from tests.server.langgraph.run_support import collected, data_of, events_of, new_thread
from tests.zoo.conftest import PROJECT
from tests.zoo.local import run_here


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def shown(messages: Any) -> list[tuple[Any, ...]]:
    """What is the same in every run of a conversation."""
    return [(each["type"], each["content"], each.get("name"), calls_of(each)) for each in messages]


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(each["name"], each["args"]) for each in message.get("tool_calls") or ()]


APPROVED = {"decisions": [{"type": "approve"}]}
CASES: list[tuple[str, list[Any]]] = [
    ("react", [{"input": said("2 + 3?")}]),
    ("approving", [{"input": said("mail ada@example.org")}, {"resume": APPROVED}]),
    ("summarizing", [{"input": said(word)} for word in ("one", "two", "three", "four")]),
    ("limited", [{"input": said("add")}]),
    ("rationed", [{"input": said("add")}]),
    ("supervised", [{"input": said("2 + 3?")}]),
    ("swarm", [{"input": said("hello")}, {"input": said("who is there?")}]),
    ("deep", [{"input": said("note it")}]),
    ("shortening", [{"input": said(word)} for word in ("one", "two", "three", "four", "five")]),
]


@pytest.fixture(scope="session")
def expected() -> list[Any]:
    """What LangGraph alone gives."""
    return run_here(PROJECT, [[f"./agents.py:{name}", *steps] for name, steps in CASES])


async def test_agents_say_what_they_say_elsewhere(client: LangGraphClient, expected: list[Any]) -> None:
    for (name, steps), wanted in zip(CASES, expected, strict=True):
        thread_id = await new_thread(client)
        ended: Any = None
        for step in steps:
            given: Any = {"command": step} if "resume" in step else step
            ended = await client.runs.wait(thread_id, name, **given)
        assert shown(ended["messages"]) == shown(wanted["messages"]), name
        assert ended.keys() == wanted.keys(), name
        state = await client.threads.get_state(thread_id)
        assert not state["next"], name
        values: Any = state["values"]
        assert shown(values["messages"]) == shown(wanted["messages"]), name


async def test_a_person_decides_about_a_tool(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    asked: Any = await client.runs.wait(thread_id, "approving", input=said("mail ada@example.org"))
    request = asked["__interrupt__"][0]["value"]
    assert request["action_requests"][0]["name"] == "send_mail"
    assert request["review_configs"][0]["allowed_decisions"] == ["approve", "edit", "reject", "respond"]
    assert asked["messages"][0]["content"] == "mail [REDACTED_EMAIL]"
    refused = {"decisions": [{"type": "reject", "message": "not now"}]}
    ended: Any = await client.runs.wait(thread_id, "approving", command={"resume": refused})
    answers = [each["content"] for each in ended["messages"] if each["type"] == "tool"]
    assert answers == ["User rejected the tool call for `send_mail` with reason: not now"]


async def test_the_files_of_a_deep_agent(client: LangGraphClient) -> None:
    ended: Any = await client.runs.wait(None, "deep", input=said("note it"))
    assert ended["todos"] == [{"content": "write", "status": "in_progress"}]
    assert ended["files"]["/notes.txt"]["content"] in ("five", ["five"])
    assert ended["messages"][-1]["content"] == "The notes say five."


async def test_memories_outlive_a_thread(client: LangGraphClient, mark: str) -> None:
    config: Any = {"configurable": {"langgraph_user": mark}}
    await client.runs.wait(None, "langmem", input=said("remember it"), config=config)
    found: Any = await client.runs.wait(None, "langmem", input=said("what do I like?"), config=config)
    assert "Ada likes tea" in next(each["content"] for each in found["messages"] if each["type"] == "tool")
    items = (await client.store.search_items(("memories", mark)))["items"]
    assert [each["value"] for each in items] == [{"content": "Ada likes tea"}]


async def test_messages_are_streamed_with_their_usage(client: LangGraphClient) -> None:
    modes: Any = ["messages-tuple", "messages"]
    thread_id = await new_thread(client)
    parts = await collected(client.runs.stream(thread_id, "react", input=said("2 + 3?"), stream_mode=modes))
    pieces = [part.data for part in parts if part.event == "messages"]
    texts = [message["content"] for message, _ in pieces if message["type"] == "AIMessageChunk"]
    assert "".join(texts) == "It is 5."
    assert [text for text in texts if text] == ["It", " is", " 5."]
    used = [message["usage_metadata"] for message, _ in pieces if message.get("usage_metadata")]
    assert [each["output_tokens"] for each in used] == [0, 3]
    assert {metadata["langgraph_node"] for _, metadata in pieces} == {"agent", "tools"}
    assert "messages/partial" in events_of(parts)
    assert data_of(parts, "messages/partial")[-1][0]["content"] == "It is 5."
