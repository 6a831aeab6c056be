"""The states of threads, as `langgraph_sdk` reads and changes them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from langgraph_sdk.errors import (
    APIStatusError,
    ConflictError,
    NotFoundError,
    UnprocessableEntityError,
)

from perdure.testing.serving import ServerProcess

FIELDS = {
    "values",
    "next",
    "tasks",
    "metadata",
    "created_at",
    "checkpoint",
    "parent_checkpoint",
    "interrupts",
    "checkpoint_id",
    "parent_checkpoint_id",
}
TASK_FIELDS = {"id", "name", "error", "interrupts", "checkpoint", "state"}


@pytest_asyncio.fixture
async def session(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url) as opened:
        yield opened


async def _ran(client: LangGraphClient, graph: str, **options: Any) -> str:
    """Run a graph once on a new thread, and return the thread's id."""
    thread = await client.threads.create()
    await client.runs.wait(thread["thread_id"], graph, raise_error=False, **options)
    return thread["thread_id"]


# --- one state --------------------------------------------------------------------------------------------


async def test_a_new_thread_has_an_empty_state(client: LangGraphClient) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    state: Any = await client.threads.get_state(thread_id)
    assert set(state) >= FIELDS
    assert (state["values"], state["next"], state["tasks"]) == ({}, [], [])
    assert state["checkpoint_id"] is None
    assert await client.threads.get_history(thread_id) == []


async def test_a_state_says_all_about_itself(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    (run,) = await client.runs.list(thread_id)
    state: Any = await client.threads.get_state(thread_id)
    assert set(state) >= FIELDS
    assert state["values"] == {"n": 4, "log": ["one", "two", "three"]}
    assert (state["next"], state["tasks"], state["interrupts"]) == ([], [], [])
    metadata = state["metadata"]
    assert (metadata["source"], metadata["step"], metadata["parents"]) == ("loop", 3, {})
    assert (metadata["run_id"], metadata["run_attempt"]) == (run["run_id"], 1)
    assert metadata["graph_id"] == "steps"
    assert metadata["assistant_id"] == run["assistant_id"]
    assert state["checkpoint"] == {
        "thread_id": thread_id,
        "checkpoint_ns": "",
        "checkpoint_id": state["checkpoint_id"],
    }
    assert state["parent_checkpoint"]["checkpoint_id"] == state["parent_checkpoint_id"]
    assert state["created_at"]


async def test_a_state_that_waits_has_its_task(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "approval", input={"n": 1})
    state: Any = await client.threads.get_state(thread_id)
    assert (state["values"], state["next"]) == ({"n": 2, "log": ["before"]}, ["ask"])
    (task,) = state["tasks"]
    assert set(task) >= TASK_FIELDS
    assert (task["name"], task["error"]) == ("ask", None)
    assert [each["value"] for each in task["interrupts"]] == [{"question": "go on?"}]
    assert state["interrupts"] == task["interrupts"]


async def test_a_state_that_failed_has_the_error(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "failing", input={"n": 1})
    state: Any = await client.threads.get_state(thread_id)
    assert (state["values"], state["next"]) == ({"n": 2, "log": ["first"]}, ["fail"])
    (task,) = state["tasks"]
    assert "this graph always fails" in task["error"]


async def test_messages_are_shown_as_objects(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "chat", input={"messages": [{"role": "user", "content": "hi"}]})
    state: Any = await client.threads.get_state(thread_id)
    asked, answered = state["values"]["messages"]
    assert (asked["type"], asked["content"]) == ("human", "hi")
    assert (answered["type"], answered["content"]) == ("ai", "hello there friend")


async def test_a_state_is_found_in_three_ways(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    history = await client.threads.get_history(thread_id)
    for wanted in history:
        place: Any = wanted["checkpoint"]
        by_id = await client.threads.get_state(thread_id, checkpoint_id=place["checkpoint_id"])
        by_checkpoint = await client.threads.get_state(thread_id, checkpoint=place)
        for found in (by_id, by_checkpoint):
            assert (found["values"], found["next"]) == (wanted["values"], wanted["next"])
            assert found["metadata"] == wanted["metadata"]
            assert found["checkpoint"]["checkpoint_id"] == place["checkpoint_id"]
    assert await client.threads.get_state(thread_id) == await client.threads.get_state(
        thread_id, checkpoint=history[0]["checkpoint"]
    )


async def test_a_state_that_is_not_there(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    nowhere = str(uuid.uuid4())
    with pytest.raises(NotFoundError):
        await client.threads.get_state(thread_id, checkpoint_id=nowhere)
    with pytest.raises(NotFoundError):
        await client.threads.get_state(
            thread_id,
            checkpoint={
                "thread_id": thread_id,
                "checkpoint_ns": "",
                "checkpoint_id": nowhere,
                "checkpoint_map": None,
            },
        )


async def test_a_state_has_the_fields_that_were_asked_for(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    state: Any = await client.threads.get_state(thread_id, select=["values.n"])
    assert state == {"values": {"n": 4}}
    state = await client.threads.get_state(thread_id, select=["next", "values.log"])
    assert state == {"next": [], "values": {"log": ["one", "two", "three"]}}
    states = await client.threads.get_history(thread_id, select=["next"])
    assert [state["next"] for state in states][:2] == [[], ["three"]]
    assert all(set(state) == {"next"} for state in states)
    with pytest.raises(UnprocessableEntityError):
        await client.threads.get_state(thread_id, select=["secrets"])


async def test_the_state_of_a_graph_within_the_graph(client: LangGraphClient) -> None:
    thread = await client.threads.create()
    thread_id = thread["thread_id"]
    await client.runs.wait(thread_id, "nested_approval", input={"n": 1})
    flat: Any = await client.threads.get_state(thread_id)
    (task,) = flat["tasks"]
    assert (task["name"], task["state"]) == ("sub", None)
    place = task["checkpoint"]
    assert place["checkpoint_ns"].startswith("sub:")
    deep: Any = await client.threads.get_state(thread_id, subgraphs=True)
    inside = deep["tasks"][0]["state"]
    assert inside["next"] == ["ask"]
    alone: Any = await client.threads.get_state(thread_id, checkpoint=place)
    assert (alone["next"], alone["values"]) == (inside["next"], inside["values"])
    assert [each["value"] for each in deep["interrupts"]] == [{"question": "go on?"}]


# --- history ----------------------------------------------------------------------------------------------


async def test_history_is_newest_first(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    history: Any = await client.threads.get_history(thread_id)
    assert [state["metadata"]["step"] for state in history] == [3, 2, 1, 0, -1]
    assert [state["metadata"]["source"] for state in history] == ["loop"] * 4 + ["input"]
    assert [state["next"] for state in history] == [[], ["three"], ["two"], ["one"], ["__start__"]]
    assert [state["values"].get("n") for state in history] == [4, 3, 2, 1, None]
    for newer, older in pairwise(history):
        assert newer["parent_checkpoint"] == older["checkpoint"]
    assert history[-1]["parent_checkpoint"] is None


async def test_history_is_read_in_parts(client: LangGraphClient, session: httpx.AsyncClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    history: Any = await client.threads.get_history(thread_id)
    ids = [state["checkpoint_id"] for state in history]

    async def part(**terms: Any) -> list[str]:
        found: Any = await client.threads.get_history(thread_id, **terms)
        return [state["checkpoint_id"] for state in found]

    assert await part(limit=2) == ids[:2]
    place = history[1]["checkpoint"]
    assert await part(before=place, limit=2) == ids[2:4]
    assert await part(before=place["checkpoint_id"]) == ids[2:]
    assert await part(before={"configurable": place}) == ids[2:]
    assert await part(before=history[-1]["checkpoint"]) == []
    assert await part(metadata={"source": "input"}) == ids[-1:]
    assert await part(metadata={"step": 1}) == [ids[2]]
    answer = await session.get(f"/threads/{thread_id}/history", params={"limit": 2})
    assert [state["checkpoint_id"] for state in answer.json()] == ids[:2]
    answer = await session.get(f"/threads/{thread_id}/history", params={"limit": 3, "before": ids[1]})
    assert [state["checkpoint_id"] for state in answer.json()] == ids[2:]
    for query in ({"limit": "0"}, {"limit": "many"}, {"limit": "1001"}):
        assert (await session.get(f"/threads/{thread_id}/history", params=query)).status_code == 422
    with pytest.raises(UnprocessableEntityError):
        await client.threads.get_history(thread_id, limit=1001)


async def test_the_history_of_a_graph_within_the_graph(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "nested_approval", input={"n": 1})
    state: Any = await client.threads.get_state(thread_id)
    place = state["tasks"][0]["checkpoint"]
    inside: Any = await client.threads.get_history(thread_id, checkpoint=place)
    assert inside
    assert {each["checkpoint"]["checkpoint_ns"] for each in inside} == {place["checkpoint_ns"]}
    outside: Any = await client.threads.get_history(thread_id)
    assert {each["checkpoint"]["checkpoint_ns"] for each in outside} == {""}


async def test_a_run_that_keeps_only_its_end_has_one_state(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1}, durability="exit")
    (state,) = await client.threads.get_history(thread_id)
    assert (state["values"], state["next"]) == ({"n": 4, "log": ["one", "two", "three"]}, [])


# --- changing ---------------------------------------------------------------------------------------------


async def test_a_state_can_be_changed(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    before: Any = await client.threads.get_state(thread_id)
    changed: Any = await client.threads.update_state(thread_id, {"n": 100})
    assert changed["checkpoint"]["thread_id"] == thread_id
    assert changed["checkpoint"]["checkpoint_ns"] == ""
    assert changed["configurable"]["checkpoint_id"] == changed["checkpoint"]["checkpoint_id"]
    state: Any = await client.threads.get_state(thread_id)
    assert state["checkpoint_id"] == changed["checkpoint"]["checkpoint_id"]
    assert state["values"] == {"n": 100, "log": ["one", "two", "three"]}
    assert state["metadata"]["source"] == "update"
    assert state["parent_checkpoint"] == before["checkpoint"]
    thread: Any = await client.threads.get(thread_id)
    assert thread["values"] == state["values"]


async def test_a_change_goes_through_reducers_and_says_what_is_next(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    await client.threads.update_state(thread_id, {"n": 10, "log": ["mine"]}, as_node="one")
    state: Any = await client.threads.get_state(thread_id)
    assert state["values"] == {"n": 10, "log": ["one", "two", "three", "mine"]}
    assert state["next"] == ["two"]
    assert (await client.threads.get(thread_id))["status"] == "interrupted"
    ended: Any = await client.runs.wait(thread_id, "steps")
    assert ended == {"n": 12, "log": ["one", "two", "three", "mine", "two", "three"]}
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def test_a_question_can_be_passed_over(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "approval", input={"n": 1})
    await client.threads.update_state(thread_id, {"log": ["skipped"]}, as_node="ask")
    thread: Any = await client.threads.get(thread_id)
    assert thread["interrupts"] == {}
    ended: Any = await client.runs.wait(thread_id, "approval")
    assert ended["log"] == ["before", "skipped", "after"]


async def test_an_earlier_state_can_be_gone_on_from(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    history: Any = await client.threads.get_history(thread_id)
    earlier = history[2]
    assert earlier["next"] == ["two"]
    changed: Any = await client.threads.update_state(thread_id, {"n": 50}, checkpoint=earlier["checkpoint"])
    state: Any = await client.threads.get_state(thread_id)
    assert state["values"] == {"n": 50, "log": ["one"]}
    assert state["parent_checkpoint"]["checkpoint_id"] == earlier["checkpoint_id"]
    ended: Any = await client.runs.wait(thread_id, "steps", checkpoint=changed["checkpoint"])
    assert ended == {"n": 52, "log": ["one", "two", "three"]}
    by_id: Any = await client.threads.update_state(
        thread_id, {"n": 70}, checkpoint_id=earlier["checkpoint_id"]
    )
    ended = await client.runs.wait(thread_id, "steps", checkpoint_id=by_id["checkpoint"]["checkpoint_id"])
    assert ended == {"n": 72, "log": ["one", "two", "three"]}


async def test_the_state_of_a_busy_thread_stays(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    go = tmp_path / "go"
    run = await client.runs.create(thread_id, "slow", input={"until": str(go)})
    with pytest.raises(ConflictError):
        await client.threads.update_state(thread_id, {"n": 1})
    go.touch()
    await client.runs.join(thread_id, run["run_id"])
    await client.threads.update_state(thread_id, {"n": 1})


async def test_a_change_that_the_graph_refuses(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "steps", input={"n": 1})
    before = await client.threads.get_state(thread_id)
    with pytest.raises(APIStatusError) as refused:
        await client.threads.update_state(thread_id, {"n": 1}, as_node="nowhere")
    assert refused.value.status_code in (400, 422)
    assert "nowhere" in refused.value.message
    with pytest.raises(NotFoundError):
        await client.threads.update_state(thread_id, {"n": 1}, checkpoint_id=str(uuid.uuid4()))
    assert await client.threads.get_state(thread_id) == before


async def test_what_a_thread_is_given_before_its_graph_is_known(client: LangGraphClient) -> None:
    """The first run starts with this state."""
    thread_id = (await client.threads.create())["thread_id"]
    await client.threads.update_state(thread_id, {"n": 5})
    assert (await client.threads.get_state(thread_id))["values"] == {"n": 5}
    ended: Any = await client.runs.wait(thread_id, "steps", input={})
    assert ended == {"n": 8, "log": ["one", "two", "three"]}
    known = (await client.threads.create(graph_id="steps"))["thread_id"]
    await client.threads.update_state(known, {"n": 1}, as_node="one")
    assert (await client.threads.get_state(known))["next"] == ["two"]


async def test_the_state_of_an_agent_that_is_no_graph(client: LangGraphClient) -> None:
    thread_id = await _ran(client, "plain", input={"a": 1})
    state: Any = await client.threads.get_state(thread_id)
    assert state["values"] == {"echo": {"a": 1}}
    assert state["next"] == []
    assert await client.threads.get_history(thread_id)


# --- the synchronous client -------------------------------------------------------------------------------


def test_the_sync_client_does_the_same(sync_client: SyncLangGraphClient) -> None:
    threads = sync_client.threads
    thread_id = threads.create()["thread_id"]
    sync_client.runs.wait(thread_id, "steps", input={"n": 1})
    history: Any = threads.get_history(thread_id, limit=3)
    assert [state["metadata"]["step"] for state in history] == [3, 2, 1]
    older: Any = threads.get_history(thread_id, before=history[-1]["checkpoint"])
    assert [state["metadata"]["step"] for state in older] == [0, -1]
    place = history[1]["checkpoint"]
    assert threads.get_state(thread_id, checkpoint=place)["next"] == ["three"]
    assert threads.get_state(thread_id, checkpoint_id=place["checkpoint_id"])["next"] == ["three"]
    threads.update_state(thread_id, {"n": 5}, as_node="three")
    assert threads.get_state(thread_id)["values"]["n"] == 5  # type: ignore[call-overload]
