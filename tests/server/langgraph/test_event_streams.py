"""The protocol of `client.threads.stream`, through the client itself and byte by byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from tests.server.langgraph.conftest import serving
from tests.server.langgraph.project import project
from tests.server.langgraph.run_support import asked, new_id

from perdure.kernel.codec import encode_json
from perdure.server.langgraph.event_translation import SPREAD, EventTranslator
from perdure.streams.model import StreamEvent
from perdure.testing.serving import ServerProcess

ALL = ["values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom"]


async def test_values_and_the_output_of_a_run(client: LangGraphClient) -> None:
    async with client.threads.stream(assistant_id="steps") as thread:
        await thread.run.start(input={"n": 0})
        seen = [values async for values in thread.values]
        output: Any = await thread.output
    assert seen[-1] == output == {"n": 3, "log": ["one", "two", "three"]}


async def test_messages_come_in_pieces(client: LangGraphClient) -> None:
    async with client.threads.stream(assistant_id="chat") as thread:
        await thread.run.start(input={"messages": [{"role": "user", "content": "hello"}]})
        found = [message async for message in thread.messages]
        texts = [str(await message.text) for message in found]
        output: Any = await thread.output
    assert texts[-1] == output["messages"][-1]["content"]


async def test_a_question_is_answered(client: LangGraphClient) -> None:
    async with client.threads.stream(assistant_id="approval") as thread:
        await thread.run.start(input={"n": 0})
        async for _ in thread.values:
            pass
        assert thread.interrupted
        [question] = thread.interrupts
        assert question["value"] is not None
        await thread.run.respond("yes")
        output: Any = await thread.output
    assert "yes" in str(output)


async def test_subgraphs_and_failures(client: LangGraphClient) -> None:
    async with client.threads.stream(assistant_id="nested") as thread:
        await thread.run.start(input={"n": 0})
        inner = [child async for child in thread.subgraphs]
    assert inner
    async with client.threads.stream(assistant_id="failing") as thread:
        await thread.run.start(input={"n": 0})
        with pytest.raises(RuntimeError, match="this graph always fails"):
            await thread.output


# --- the wire ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def subscribed(url: str, thread_id: str, **body: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Yield the events of a subscription."""

    async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    async with (
        httpx.AsyncClient(base_url=url, timeout=30.0) as session,
        session.stream(
            "POST", f"/threads/{thread_id}/stream/events", json={"channels": ALL, **body}
        ) as answer,
    ):
        assert answer.status_code == 200
        yield events(answer)


async def until_end(events: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    async for event in events:
        found.append(event)
        at_end = event["params"]["data"].get("event") in ("completed", "failed", "interrupted")
        if event["method"] == "lifecycle" and not event["params"]["namespace"] and at_end:
            break
    return found


async def test_a_reader_that_comes_back_misses_nothing_and_sees_nothing_twice(server: ServerProcess) -> None:
    thread_id = new_id()
    started = {
        "id": 1,
        "method": "run.start",
        "params": {"assistant_id": "chat", "input": {"messages": "hi"}},
    }
    async with subscribed(server.url, thread_id) as events:
        answer = await asked(server.url, f"/threads/{thread_id}/commands", "POST", started)
        assert answer.json()["type"] == "success"
        whole = await until_end(events)
    numbers = [event["seq"] for event in whole]
    assert numbers == sorted(set(numbers))
    assert len({event["event_id"] for event in whole}) == len(whole)
    for index, event in enumerate(whole):
        async with subscribed(server.url, thread_id, since=event["seq"]) as events:
            if whole[index + 1 :]:
                assert await until_end(events) == whole[index + 1 :]
    async with subscribed(server.url, thread_id, channels=["lifecycle"], namespaces=[[]], depth=0) as events:
        phases = [event["params"]["data"]["event"] for event in await until_end(events)]
    assert phases == ["running", "completed"]


async def test_a_reader_goes_on_over_the_death_of_its_server(tmp_path: Path) -> None:
    folder, thread_id = project(tmp_path, ("chat",)), new_id()
    params = {"assistant_id": "chat", "input": {"messages": "hi"}}
    with serving(folder, f"sqlite:///{folder / 'perdure.db'}") as killed:
        async with subscribed(killed.url, thread_id) as events:
            command = {"id": 1, "method": "run.start", "params": params}
            await asked(killed.url, f"/threads/{thread_id}/commands", "POST", command)
            whole = await until_end(events)
        killed.kill()
        killed.start()
        middle = len(whole) // 2
        async with subscribed(killed.url, thread_id, since=whole[middle]["seq"]) as events:
            assert await until_end(events) == whole[middle + 1 :]


async def test_what_is_wrong_is_answered_in_the_protocols_own_form(server: ServerProcess) -> None:
    thread_id = new_id()
    for command, status, code in (
        ({"id": 3, "method": "nothing"}, 200, "unknown_command"),
        ({"method": "run.start"}, 400, "invalid_argument"),
        ({"id": "x", "method": "run.start"}, 400, "invalid_argument"),
        ({"id": 4, "method": "run.start", "params": {}}, 200, "invalid_argument"),
        ({"id": 5, "method": "run.start", "params": 7}, 200, "invalid_argument"),
        ({"id": 6, "method": "run.start", "params": {"assistant_id": "nobody"}}, 200, "invalid_argument"),
        ({"id": 7, "method": "input.respond", "params": {"interrupt_id": "x"}}, 200, "no_such_interrupt"),
    ):
        answer = await asked(server.url, f"/threads/{thread_id}/commands", "POST", command)
        assert (answer.status_code, answer.json()["type"], answer.json()["error"]) == (status, "error", code)
    body: dict[str, Any]
    for body in ({}, {"channels": []}, {"channels": ["colours"]}, {"channels": ["custom:"]}):
        answer = await asked(server.url, f"/threads/{thread_id}/stream/events", "POST", body)
        assert answer.status_code == 400, body
    for body in ({"channels": ["values"], "since": -1}, {"channels": ["values"], "depth": "x"}):
        answer = await asked(server.url, f"/threads/{thread_id}/stream/events", "POST", body)
        assert answer.status_code == 422, body


# --- translation ------------------------------------------------------------------------------------------


def translated(*events: tuple[str, Any]) -> list[tuple[int, str, Any]]:
    """Translate stored events of one run."""
    translator = EventTranslator()
    found = []
    for seq, (name, data) in enumerate(events, 1):
        for number, each in translator.translate(
            StreamEvent(seq, 1, "run", 1, name, encode_json(data)), "graph"
        ):
            assert number // SPREAD == seq
            found.append((number, each.method, each.data))
    return found


def test_a_tool_call_that_is_streamed_is_started_and_finished() -> None:
    def piece(**fields: Any) -> tuple[str, Any]:
        return "messages", [
            {"type": "AIMessageChunk", "id": "m", "content": "", **fields},
            {"langgraph_node": "a"},
        ]

    calls = [{"name": "add", "args": '{"a"', "id": "c", "index": 0}]
    more = [{"name": None, "args": ": 1}", "id": None, "index": 0}]
    result = [{"type": "tool", "id": "t", "content": "2", "tool_call_id": "c", "status": "success"}, {}]
    found = translated(
        ("metadata", {"run_id": "run", "attempt": 1}),
        piece(content="thinking"),
        piece(tool_call_chunks=calls),
        piece(tool_call_chunks=more, usage_metadata={"input_tokens": 1}),
        ("updates", {"a": {}}),
        ("messages", result),
        ("end", {"status": "success"}),
    )
    data = [each for _, method, each in found if method == "messages"]
    assert [each["event"] for each in data] == [
        "message-start",
        "content-block-start",
        "content-block-delta",
        "content-block-start",
        "content-block-delta",
        "content-block-delta",
        "content-block-finish",
        "content-block-finish",
        "message-finish",
    ]
    call = {"type": "tool_call", "id": "c", "name": "add", "args": {"a": 1}}
    assert data[-2]["content"] == call
    assert data[-1]["usage"] == {"input_tokens": 1}
    tools = [each for _, method, each in found if method == "tools"]
    assert tools == [
        {"event": "tool-started", "tool_call_id": "c", "tool_name": "add", "input": {"a": 1}},
        {"event": "tool-finished", "tool_call_id": "c", "output": "2"},
    ]


@pytest.mark.parametrize(
    ("ending", "phase"),
    [
        ([("end", {"status": "success"})], "completed"),
        ([("error", {"error": "E", "message": "bad"}), ("end", {"status": "error"})], "failed"),
        ([("end", {"status": "timeout"})], "failed"),
        ([("end", {"status": "interrupted"})], "failed"),
        (
            [("updates", {"__interrupt__": [{"id": "i", "value": 1}]}), ("end", {"status": "success"})],
            "interrupted",
        ),
    ],
)
def test_the_end_of_a_run_ends_all_that_it_began(ending: list[tuple[str, Any]], phase: str) -> None:
    begun: list[tuple[str, Any]] = [("metadata", {}), ("values|sub:1", {"a": 1})]
    growing = ("messages|sub:1", [{"type": "AIMessageChunk", "id": "m", "content": "x"}, {}])
    found = translated(*begun, growing, *ending)
    phases = [data["event"] for _, method, data in found if method == "lifecycle"]
    assert phases == ["running", "started", phase, phase]
    assert [data["event"] for _, method, data in found if method == "messages"][-1] == "message-finish"


def test_what_is_stored_oddly_breaks_nothing() -> None:
    odd = [None, 5, "x", [], {}, [1, 2], [{"type": "ai"}, 3], [{"type": "tool"}, {}], {"__interrupt__": 4}]
    for name in ("values", "updates", "messages", "custom", "error", "end", "debug", "control"):
        for data in odd:
            if name == "error" and not isinstance(data, dict | None):
                continue
            translated(("metadata", {}), (name, data))
