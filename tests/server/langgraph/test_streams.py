"""Streams of events, as the real client reads them and as bytes."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from tests.server.langgraph.run_support import (
    STEPS,
    Gate,
    asked,
    collected,
    data_of,
    events_of,
    new_thread,
    started,
)

from perdure.testing.serving import ServerProcess

UPDATES = [
    {"one": {"n": 1, "log": ["one"]}},
    {"two": {"n": 2, "log": ["two"]}},
    {"three": {"n": 3, "log": ["three"]}},
]
VALUES = [{"n": n, "log": STEPS[:n]} for n in range(4)]


def place_of(event_id: str | None) -> tuple[int, int]:
    """Parse an id for comparison."""
    assert event_id is not None
    ms, _, seq = event_id.partition("-")
    return int(ms), int(seq)


# --- on the wire ------------------------------------------------------------------------------------------


async def test_frames_are_as_clients_expect_them(server: ServerProcess) -> None:
    body = {"assistant_id": "steps", "input": {"n": 0}}
    response = await asked(server.url, "/runs/stream", "POST", body)
    run_id = response.headers["content-location"].rpartition("/")[2]
    frames = [b'event: metadata\r\ndata: {"run_id":"%s","attempt":1}\r\n\r\n' % run_id.encode()]
    for values in VALUES:
        text = json.dumps(values, separators=(",", ":")).encode()
        frames.append(b"event: values\r\ndata: " + text + b"\r\n\r\n")
    assert response.content == b"".join(frames)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_frames_have_ids_if_they_can_be_resumed(server: ServerProcess) -> None:
    body = {"assistant_id": "noop", "input": {"n": 0}, "stream_resumable": True}
    response = await asked(server.url, "/runs/stream", "POST", body)
    *frames, rest = response.content.split(b"\r\n\r\n")
    assert rest == b""
    assert frames
    for frame in frames:
        event, data, id = frame.split(b"\r\n")
        assert event.startswith(b"event: ")
        assert data.startswith(b"data: ")
        ms, seq = id.removeprefix(b"id: ").split(b"-")
        assert ms.isdigit()
        assert seq.isdigit()


async def test_the_line_is_kept_alive(server: ServerProcess, client: LangGraphClient, tmp_path: Path) -> None:
    """A comment in a stream, a blank line before values: each is sent while nothing else is."""
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    run_id = await started(client, thread_id, gate)
    path = f"/threads/{thread_id}/runs/{run_id}"
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=30.0) as raw,
        raw.stream("GET", path + "/stream") as events,
        raw.stream("GET", path + "/join") as values,
    ):
        told, waited = events.aiter_raw(), values.aiter_raw()
        assert await anext(told) == b": heartbeat\r\n\r\n"
        assert await anext(waited) == b"\n"
        gate.open()
        rest = b"".join([part async for part in waited])
    assert json.loads(rest)["log"] == ["before", "waited", "after"]


# --- events of a run --------------------------------------------------------------------------------------


async def test_values_begin_with_the_input(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    parts = await collected(client.runs.stream(thread_id, "steps", input={"n": 0}))
    assert events_of(parts) == ["metadata", *["values"] * 4]
    assert parts[0].data["attempt"] == 1
    assert data_of(parts, "values") == VALUES
    assert {part.id for part in parts} == {None}


async def test_several_modes_come_in_order(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    parts = await collected(
        client.runs.stream(thread_id, "steps", input={"n": 0}, stream_mode=["values", "updates"])
    )
    assert events_of(parts) == ["metadata", "values", *["updates", "values"] * 3]
    assert data_of(parts, "updates") == UPDATES


async def test_custom_events_come_in_order(client: LangGraphClient) -> None:
    parts = await collected(client.runs.stream(None, "telling", input={"n": 1000}, stream_mode="custom"))
    assert data_of(parts, "custom") == [{"number": number} for number in range(1000)]


async def test_messages_grow(client: LangGraphClient) -> None:
    said: Any = {"messages": [{"role": "user", "content": "hi", "id": "question-1"}]}
    parts = await collected(client.runs.stream(None, "chat", input=said, stream_mode="messages"))
    assert {part.event.partition("/")[0] for part in parts[1:]} == {"messages"}
    assert "messages/metadata" in events_of(parts)
    grown = [data[0]["content"] for data in data_of(parts, "messages/partial")]
    assert grown
    assert grown[-1] == "hello there friend"
    assert all(later.startswith(earlier) for earlier, later in pairwise(grown))


async def test_messages_come_in_pieces(client: LangGraphClient) -> None:
    said: Any = {"messages": [{"role": "user", "content": "hi", "id": "question-1"}]}
    parts = await collected(client.runs.stream(None, "chat", input=said, stream_mode="messages-tuple"))
    pieces = data_of(parts, "messages")
    assert "".join(chunk["content"] for chunk, _ in pieces) == "hello there friend"
    assert {meta["langgraph_node"] for _, meta in pieces} == {"answer"}


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [("debug", {"checkpoint", "task", "task_result"}), ("tasks", None), ("checkpoints", None)],
)
async def test_the_inside_is_told(client: LangGraphClient, mode: Any, kinds: set[str] | None) -> None:
    parts = await collected(client.runs.stream(None, "steps", input={"n": 0}, stream_mode=mode))
    told = data_of(parts, mode)
    assert len(told) >= 4
    assert set(events_of(parts)) == {"metadata", mode}
    if kinds is not None:
        assert {each["type"] for each in told} == kinds


async def test_events_of_every_part_are_told(client: LangGraphClient) -> None:
    parts = await collected(client.runs.stream(None, "steps", input={"n": 0}, stream_mode="events"))
    told = data_of(parts, "events")
    assert told[0]["event"] == "on_chain_start"
    assert told[-1]["event"] == "on_chain_end"


async def test_subgraphs_are_told_if_that_is_wished(client: LangGraphClient) -> None:
    parts = await collected(
        client.runs.stream(None, "nested", input={"n": 0}, stream_mode="updates", stream_subgraphs=True)
    )
    inner = [part for part in parts if part.event.startswith("updates|sub:")]
    assert [list(part.data) for part in inner] == [["inner_one"], ["inner_two"]]
    plain = await collected(client.runs.stream(None, "nested", input={"n": 0}, stream_mode="updates"))
    assert set(events_of(plain)) == {"metadata", "updates"}


async def test_a_failure_is_told_last(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    parts = await collected(client.runs.stream(thread_id, "failing", input={"n": 0}))
    assert events_of(parts)[-1] == "error"
    assert parts[-1].data == {"error": "ValueError", "message": "this graph always fails"}


@pytest.mark.parametrize("mode", ["updates", "values"])
async def test_a_question_is_told(client: LangGraphClient, mode: Any) -> None:
    thread_id = await new_thread(client)
    parts = await collected(client.runs.stream(thread_id, "approval", input={"n": 0}, stream_mode=mode))
    (asking,) = [part.data["__interrupt__"] for part in parts if "__interrupt__" in (part.data or {})]
    assert asking[0]["value"] == {"question": "go on?"}
    answered = await collected(
        client.runs.stream(thread_id, "approval", command={"resume": "ok"}, stream_mode="updates")
    )
    assert data_of(answered, "updates")[0] == {"ask": {"log": ["approved: ok"]}}


async def test_an_agent_that_is_no_graph_streams_too(client: LangGraphClient) -> None:
    parts = await collected(client.runs.stream(None, "plain", input={"a": 1}))
    assert events_of(parts) == ["metadata", "values"]
    assert parts[-1].data == {"echo": {"a": 1}}


async def test_the_second_version_of_parts_can_be_read(client: LangGraphClient) -> None:
    parts = [part async for part in client.runs.stream(None, "steps", input={"n": 0}, version="v2")]
    assert [part["type"] for part in parts] == ["metadata", *["values"] * 4]


# --- joining ----------------------------------------------------------------------------------------------


async def test_who_joins_gets_what_comes_from_now_on(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    run_id = await started(client, thread_id, gate)
    stream = client.runs.join_stream(thread_id, run_id)
    reading = asyncio.ensure_future(anext(stream))
    # The server counts the joined stream; until then no event may be sent.
    await client.runs.get(thread_id, run_id)
    other = client.runs.join_stream(thread_id, run_id, last_event_id="-1")
    assert [(await anext(other)).event for _ in range(2)] == ["metadata", "updates"]
    gate.open()
    first = await reading
    assert list(first.data) == ["wait"]
    assert [list(part.data) async for part in stream] == [["after"]]
    assert [list(part.data) async for part in other] == [["wait"], ["after"]]
    assert await collected(client.runs.join_stream(thread_id, run_id)) == []


async def test_a_stream_is_resumed_after_any_event(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    made: list[Any] = []
    parts = await collected(
        client.runs.stream(
            thread_id,
            "steps",
            input={"n": 0},
            stream_mode=["values", "updates"],
            stream_resumable=True,
            on_run_created=made.append,
        )
    )
    run_id = made[0]["run_id"]
    places = [place_of(part.id) for part in parts]
    assert places == sorted(set(places))
    assert await collected(client.runs.join_stream(thread_id, run_id, last_event_id="-1")) == parts
    for number, part in enumerate(parts):
        rest = await collected(client.runs.join_stream(thread_id, run_id, last_event_id=part.id))
        assert rest == parts[number + 1 :]


async def test_who_joins_may_choose_modes(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    run = await client.runs.create(
        thread_id,
        "nested",
        input={"n": 0},
        stream_mode=["values", "updates"],
        stream_subgraphs=True,
        stream_resumable=True,
    )
    await client.runs.join(thread_id, run["run_id"])

    async def joined(mode: Any) -> list[str]:
        stream = client.runs.join_stream(thread_id, run["run_id"], stream_mode=mode, last_event_id="-1")
        return [part.event.partition("|")[0] + "|" * ("|" in part.event) async for part in stream]

    updates = await joined("updates")
    assert set(updates) == {"updates", "updates|"}
    assert set(await joined(["updates", "values"])) == {"updates", "updates|", "values", "values|"}
    assert await joined("custom") == []
    assert await joined('["updates"]') == updates


async def test_who_joins_by_messages_gets_them_in_every_form(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    said: Any = {"messages": [{"role": "user", "content": "hi", "id": "question-1"}]}
    run = await client.runs.create(
        thread_id, "chat", input=said, stream_mode=["messages", "values"], stream_resumable=True
    )
    await client.runs.join(thread_id, run["run_id"])
    stream = client.runs.join_stream(thread_id, run["run_id"], stream_mode="messages", last_event_id="-1")
    assert {part.event async for part in stream} >= {"messages/metadata", "messages/partial"}


async def test_many_read_one_stream(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id = await new_thread(client)
    run = await client.runs.create(
        thread_id, "telling", input={"n": 200}, stream_mode="custom", stream_resumable=True, after_seconds=1
    )
    streams = [client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1") for _ in range(50)]
    read = await asyncio.gather(*map(collected, streams))
    assert all(each == read[0] for each in read)
    assert len(data_of(read[0], "custom")) == 200


def test_the_synchronous_client_joins(sync_client: SyncLangGraphClient) -> None:
    client = sync_client
    thread_id = client.threads.create()["thread_id"]
    run = client.runs.create(
        thread_id, "steps", input={"n": 0}, stream_mode=["updates"], stream_resumable=True
    )
    parts = list(client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1"))
    assert [part.data for part in parts if part.event == "updates"] == UPDATES
    rest = list(client.runs.join_stream(thread_id, run["run_id"], last_event_id=parts[1].id))
    assert rest == parts[2:]


# --- the stream of a thread -------------------------------------------------------------------------------


async def read_until_done(stream: Any, runs: int) -> list[Any]:
    """Read the events of a thread until this many of its runs have ended."""
    parts = []
    async for part in stream:
        parts.append(part)
        if part.event == "metadata" and part.data.get("status") == "run_done":
            runs -= 1
            if not runs:
                break
    await stream.aclose()
    return parts


async def test_a_thread_tells_of_all_its_runs(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    stream = await client.threads.join_stream(thread_id, last_event_id="-1")
    reading = asyncio.ensure_future(read_until_done(stream, 2))
    first = await client.runs.create(thread_id, "steps", input={"n": 0}, stream_mode="updates")
    second = await client.runs.create(thread_id, "failing", input={"n": 0})
    parts = await reading
    begin = {"run_id": first["run_id"], "attempt": 1}
    done = {"status": "run_done", "run_id": first["run_id"]}
    assert parts[0].data == begin
    assert [part.data for part in parts[1:5]] == [*UPDATES, done]
    assert parts[5].data == {"run_id": second["run_id"], "attempt": 1}
    assert events_of(parts)[-2:] == ["error", "metadata"]
    places = [place_of(part.id) for part in parts]
    assert places == sorted(set(places))
    rest = await client.threads.join_stream(thread_id, last_event_id=parts[3].id)
    assert await read_until_done(rest, 2) == parts[4:]


async def test_a_thread_may_tell_of_lives_alone(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    run = await client.runs.create(thread_id, "steps", input={"n": 0})
    await client.runs.join(thread_id, run["run_id"])
    stream = await client.threads.join_stream(thread_id, last_event_id="-1", stream_mode="lifecycle")
    parts = await read_until_done(stream, 1)
    assert [part.data for part in parts] == [
        {"run_id": run["run_id"], "attempt": 1},
        {"status": "run_done", "run_id": run["run_id"]},
    ]


async def test_a_thread_tells_from_now_on(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    run_id = await started(client, thread_id, gate)
    stream: Any = await client.threads.join_stream(thread_id)
    reading = asyncio.ensure_future(anext(stream))
    other: Any = await client.threads.join_stream(thread_id, last_event_id="-1")
    assert (await anext(other)).data["run_id"] == run_id
    gate.open()
    first = await reading
    assert list(first.data) == ["wait"]
    parts = await read_until_done(stream, 1)
    assert list(parts[0].data) == ["after"]
    await other.aclose()


async def test_a_thread_tells_of_states_that_are_set(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    await client.runs.wait(thread_id, "steps", input={"n": 0})
    await client.threads.update_state(thread_id, {"n": 40})
    stream: Any = await client.threads.join_stream(
        thread_id, last_event_id="-1", stream_mode=["state_update"]
    )
    part = await anext(stream)
    assert part.event == "state_update"
    assert part.data["thread_id"] == thread_id
    assert part.data["state"]["values"] == {"n": 40, "log": STEPS}
    await client.threads.update_state(thread_id, {"n": 50})
    assert (await anext(stream)).data["state"]["values"]["n"] == 50
    await stream.aclose()
    runs = await client.threads.join_stream(thread_id, last_event_id="-1")
    assert "state_update" not in events_of(await read_until_done(runs, 1))


async def test_a_mode_of_a_thread_must_be_known(server: ServerProcess, client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    response = await asked(server.url, f"/threads/{thread_id}/stream?stream_mode=values")
    assert response.status_code == 422
