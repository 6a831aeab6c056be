"""Requests that the routes of runs refuse, and the errors of the real client."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import (
    BadRequestError,
    NotFoundError,
    UnprocessableEntityError,
)
from tests.server.langgraph.run_support import asked, new_id, new_thread

from perdure.testing.serving import ServerProcess

BAD_BODIES: list[dict[str, Any]] = [
    {},
    {"assistant_id": ""},
    {"assistant_id": 5},
    {"assistant_id": "noop", "stream_mode": "nonsense"},
    {"assistant_id": "noop", "stream_mode": ["values", "nonsense"]},
    {"assistant_id": "noop", "stream_mode": "tools"},
    {"assistant_id": "noop", "stream_mode": ["lifecycle"]},
    {"assistant_id": "noop", "multitask_strategy": "nonsense"},
    {"assistant_id": "noop", "durability": "never"},
    {"assistant_id": "noop", "on_disconnect": "wave"},
    {"assistant_id": "noop", "on_completion": "explode"},
    {"assistant_id": "noop", "if_not_exists": "ask"},
    {"assistant_id": "noop", "after_seconds": -1},
    {"assistant_id": "noop", "config": {"recursion_limit": "many"}},
    {"assistant_id": "noop", "config": {"recursion_limit": 0}},
    {"assistant_id": "noop", "config": {"configurable": []}},
    {"assistant_id": "noop", "config": "x"},
    {"assistant_id": "noop", "metadata": []},
    {"assistant_id": "noop", "interrupt_before": "one"},
    {"assistant_id": "noop", "webhook": "ftp://example.com"},
    {"assistant_id": "noop", "webhook": "http://127.0.0.1/hook"},
]
FORMS = ("", "/stream", "/wait")


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: str(body)[:60])
async def test_a_bad_body_is_refused(
    server: ServerProcess, client: LangGraphClient, body: dict[str, Any]
) -> None:
    thread_id = await new_thread(client)
    for path in ("/runs", f"/threads/{thread_id}/runs"):
        for form in FORMS:
            response = await asked(server.url, path + form, "POST", body)
            assert response.status_code == 422, (path + form, response.text)
            assert isinstance(response.json()["detail"], str)
    assert await client.runs.list(thread_id) == []


async def test_what_is_no_json_is_refused(server: ServerProcess) -> None:
    response = await asked(server.url, "/runs", "POST", headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert isinstance(response.json()["detail"], str)


async def test_statuses_are_those_of_langgraph_dev(client: LangGraphClient, server: ServerProcess) -> None:
    thread_id = await new_thread(client)
    await client.runs.wait(thread_id, "steps", input={"n": 0})
    for method, path, body, status in (
        ("POST", f"/threads/{thread_id}/runs", {"assistant_id": "nobody"}, 422),
        ("POST", "/runs/stream", {"assistant_id": "nobody"}, 422),
        ("POST", "/runs/batch", [{"assistant_id": "noop"}, {"assistant_id": "nobody"}], 422),
        ("GET", "/assistants/steps/graph", None, 200),
        ("GET", "/assistants/nobody/graph", None, 422),
        ("GET", "/assistants/steps/schemas", None, 422),
        ("GET", "/assistants/steps/graph?xray=0", None, 422),
        ("POST", "/threads/search", {"ids": ["x"]}, 400),
        ("POST", f"/threads/{thread_id}/state", {"values": {"log": []}, "as_node": "nobody"}, 400),
        ("PUT", "/store/items", {"namespace": [], "key": "k", "value": {}}, 400),
        ("GET", f"/store/items?namespace={new_id()}&key=k", None, 200),
    ):
        response = await asked(server.url, path, method, body)
        assert response.status_code == status, (method, path, response.text)


async def test_what_is_missing_is_not_found(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    with pytest.raises(NotFoundError):
        await client.runs.create(thread_id, new_id())
    with pytest.raises(NotFoundError):
        await client.runs.create(new_id(), "noop")
    with pytest.raises(NotFoundError):
        await client.runs.list(new_id())
    for call in (client.runs.get, client.runs.delete, client.runs.cancel):
        with pytest.raises(NotFoundError):
            await call(thread_id, new_id())
    with pytest.raises(NotFoundError):
        async for _ in client.runs.join_stream(thread_id, new_id()):
            pass
    with pytest.raises(NotFoundError):
        async for _ in client.runs.stream(new_id(), "noop"):
            pass
    with pytest.raises(NotFoundError):
        async for _ in await client.threads.join_stream(new_id()):
            pass
    with pytest.raises(NotFoundError):
        await client.runs.create(thread_id, "noop", checkpoint_id=new_id())


async def test_ids_must_be_uuids(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    with pytest.raises(UnprocessableEntityError):
        await client.runs.create("mine", "noop")
    with pytest.raises(UnprocessableEntityError):
        await client.runs.list("mine")
    for call in (client.runs.get, client.runs.delete, client.runs.cancel):
        with pytest.raises(UnprocessableEntityError):
            await call(thread_id, "mine")


async def test_contradictions_are_refused(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    with pytest.raises(BadRequestError):
        await client.runs.create(
            thread_id, "given", context={"name": "a"}, config={"configurable": {"name": "b"}}
        )
    with pytest.raises(BadRequestError):
        await client.runs.create(None, "approval", command={"resume": "yes"})


@pytest.mark.parametrize(
    "query", ["status=nonsense", "select=nonsense", "limit=0", "limit=x", "offset=-1", "limit=100000"]
)
async def test_a_bad_query_is_refused(server: ServerProcess, client: LangGraphClient, query: str) -> None:
    thread_id = await new_thread(client)
    response = await asked(server.url, f"/threads/{thread_id}/runs?{query}")
    assert response.status_code == 422
    assert isinstance(response.json()["detail"], str)


@pytest.mark.parametrize("event_id", ["nonsense", "1-2-3", "-5"])
async def test_a_bad_place_in_a_stream_is_refused(
    server: ServerProcess, client: LangGraphClient, event_id: str
) -> None:
    thread_id = await new_thread(client)
    run = await client.runs.create(thread_id, "noop", input={})
    for path in (f"/threads/{thread_id}/runs/{run['run_id']}/stream", f"/threads/{thread_id}/stream"):
        response = await asked(server.url, path, headers={"Last-Event-ID": event_id})
        assert response.status_code == 422
