"""Cancelled runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from langgraph_sdk.errors import NotFoundError, UnprocessableEntityError
from tests.server.langgraph.run_support import (
    Gate,
    asked,
    collected,
    new_id,
    new_thread,
    started,
    until_status,
    until_thread,
)

from perdure.testing.serving import ServerProcess


async def test_a_run_is_cancelled(server: ServerProcess, client: LangGraphClient, tmp_path: Path) -> None:
    thread_id = await new_thread(client)
    run_id = await started(client, thread_id, Gate(tmp_path))
    response = await asked(server.url, f"/threads/{thread_id}/runs/{run_id}/cancel", "POST")
    assert (response.status_code, response.content) == (202, b"")
    assert (await client.runs.get(thread_id, run_id))["status"] == "interrupted"
    await until_thread(client, thread_id, "interrupted")
    state: Any = await client.threads.get_state(thread_id)
    assert state["next"] == ["wait"]
    assert state["values"]["log"] == ["before"]


async def test_whoever_cancels_may_wait(
    server: ServerProcess, client: LangGraphClient, tmp_path: Path
) -> None:
    thread_id = await new_thread(client)
    run_id = await started(client, thread_id, Gate(tmp_path))
    response = await asked(server.url, f"/threads/{thread_id}/runs/{run_id}/cancel?wait=1", "POST")
    assert response.status_code == 200
    assert response.json()["log"] == ["before"]
    assert response.headers["location"].endswith(f"/runs/{run_id}/join")
    assert (await client.threads.get(thread_id))["status"] == "interrupted"


async def test_a_cancelled_graph_goes_on(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    run_id = await started(client, thread_id, gate)
    await client.runs.cancel(thread_id, run_id, wait=True)
    gate.open()
    values: Any = await client.runs.wait(thread_id, "slow", input=None)
    assert values["log"] == ["before", "waited", "after"]


async def test_a_waiting_run_is_cancelled(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    run = await client.runs.create(thread_id, "noop", input={}, after_seconds=3600)
    await client.runs.cancel(thread_id, run["run_id"])
    assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "interrupted"
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def test_what_has_ended_cannot_be_cancelled(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    run = await client.runs.create(thread_id, "noop", input={})
    await client.runs.join(thread_id, run["run_id"])
    with pytest.raises(NotFoundError):
        await client.runs.cancel(thread_id, run["run_id"])
    with pytest.raises(NotFoundError):
        await client.runs.cancel(thread_id, new_id())
    assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "success"


async def test_a_stream_ends_with_its_run(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id = await new_thread(client)
    run_id = await started(client, thread_id, Gate(tmp_path))
    reading = asyncio.ensure_future(collected(client.runs.join_stream(thread_id, run_id)))
    joining = asyncio.ensure_future(client.runs.join(thread_id, run_id))
    await client.runs.cancel(thread_id, run_id)
    assert await reading == []
    assert (await joining)["log"] == ["before"]


# --- many -------------------------------------------------------------------------------------------------


async def test_many_are_cancelled_by_their_ids(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    runs = [await client.runs.create(thread_id, "noop", input={}, after_seconds=3600) for _ in range(3)]
    wanted = [run["run_id"] for run in runs[:2]]
    await client.runs.cancel_many(thread_id=thread_id, run_ids=wanted)
    statuses = {run["run_id"]: run["status"] for run in await client.runs.list(thread_id)}
    assert statuses == {**dict.fromkeys(wanted, "interrupted"), runs[2]["run_id"]: "pending"}
    with pytest.raises(NotFoundError):
        await client.runs.cancel_many(thread_id=thread_id, run_ids=wanted)
    await client.runs.cancel_many(thread_id=thread_id, run_ids=[runs[2]["run_id"]], action="rollback")
    with pytest.raises(NotFoundError):
        await client.runs.get(thread_id, runs[2]["run_id"])


async def test_many_are_cancelled_by_their_status(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, other, gate = await new_thread(client), await new_thread(client), Gate(tmp_path)
    running = await started(client, thread_id, gate)
    waiting = await client.runs.create(other, "noop", input={}, after_seconds=3600)
    await client.runs.cancel_many(status="pending")
    assert (await client.runs.get(other, waiting["run_id"]))["status"] == "interrupted"
    assert (await client.runs.get(thread_id, running))["status"] == "running"
    await client.runs.cancel_many(status="all")
    assert (await client.runs.get(thread_id, running))["status"] == "interrupted"
    with pytest.raises(NotFoundError):
        await client.runs.cancel_many(status="all")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"thread_id": new_id()},
        {"run_ids": [new_id()]},
        {"status": "all", "thread_id": new_id()},
        {"status": "all", "run_ids": [new_id()]},
        {"status": "success"},
        {"thread_id": "no uuid", "run_ids": [new_id()]},
        {"thread_id": new_id(), "run_ids": ["no uuid"]},
    ],
)
async def test_a_choice_that_says_nothing_is_refused(server: ServerProcess, body: dict[str, Any]) -> None:
    response = await asked(server.url, "/runs/cancel", "POST", body)
    assert response.status_code == 422
    assert isinstance(response.json()["detail"], str)


async def test_an_action_must_be_known(client: LangGraphClient) -> None:
    with pytest.raises(UnprocessableEntityError):
        await client.runs.cancel(new_id(), new_id(), action="explode")  # type: ignore[arg-type]


# --- disconnected callers ---------------------------------------------------------------------------------


async def test_a_run_ends_with_its_caller_if_that_is_wished(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    made: list[Any] = []
    stream = client.runs.stream(
        thread_id,
        "slow",
        input=gate.input,
        stream_mode="updates",
        on_disconnect="cancel",
        on_run_created=made.append,
    )
    async for part in stream:
        if part.event == "updates":
            break
    await stream.aclose()  # type: ignore[attr-defined]
    await until_status(client, thread_id, made[0]["run_id"], "interrupted")


async def test_a_run_outlives_its_caller(client: LangGraphClient, tmp_path: Path) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    run_id = await started(client, thread_id, gate)
    gate.open()
    values = await client.runs.join(thread_id, run_id)
    assert values["log"] == ["before", "waited", "after"]


async def test_a_run_ends_with_who_joined_it_if_that_is_wished(
    client: LangGraphClient, tmp_path: Path
) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    run_id = await started(client, thread_id, gate)
    stream = client.runs.join_stream(thread_id, run_id, cancel_on_disconnect=True, last_event_id="-1")
    async for part in stream:
        if part.event == "updates":
            break
    await stream.aclose()  # type: ignore[attr-defined]
    await until_status(client, thread_id, run_id, "interrupted")


async def test_a_wait_that_is_given_up_ends_its_run_if_that_is_wished(
    client: LangGraphClient, tmp_path: Path
) -> None:
    thread_id, gate = await new_thread(client), Gate(tmp_path)
    made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(
        client.runs.wait(
            thread_id, "slow", input=gate.input, on_disconnect="cancel", multitask_strategy="reject"
        )
    )
    while not (runs := await client.runs.list(thread_id, status="running")):  # noqa: ASYNC110
        await asyncio.sleep(0)
    made.set_result(runs[0])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until_status(client, thread_id, made.result()["run_id"], "interrupted")


def test_the_synchronous_client_cancels(sync_client: SyncLangGraphClient) -> None:
    client = sync_client
    thread_id = client.threads.create()["thread_id"]
    run = client.runs.create(thread_id, "noop", input={}, after_seconds=3600)
    client.runs.cancel(thread_id, run["run_id"], wait=True)
    assert client.runs.get(thread_id, run["run_id"])["status"] == "interrupted"
    run = client.runs.create(thread_id, "noop", input={}, after_seconds=3600)
    client.runs.cancel_many(thread_id=thread_id, run_ids=[run["run_id"]])
    assert client.runs.get(thread_id, run["run_id"])["status"] == "interrupted"
