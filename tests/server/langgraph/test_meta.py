"""Information of the server about itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.metadata import version

import httpx
import pytest_asyncio
from langgraph_sdk.client import LangGraphClient

from perdure import __version__
from perdure.testing.serving import ServerProcess


@pytest_asyncio.fixture
async def session(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url) as opened:
        yield opened


async def test_ok(session: httpx.AsyncClient) -> None:
    for query in ("", "?check_db=1"):
        answer = await session.get("/ok" + query)
        assert (answer.status_code, answer.json()["ok"]) == (200, True)


async def test_info_tells_the_release_and_what_is_there(session: httpx.AsyncClient) -> None:
    info = (await session.get("/info")).json()
    assert info["version"] == __version__
    assert info["langgraph_py_version"] == version("langgraph")
    assert info["flags"] == {"assistants": True, "crons": True, "langsmith": False}
    assert info["host"]["kind"] == "self-hosted"
    assert "langgraph" in info["protocols"]


async def test_metrics_as_json_have_the_queue_and_the_workers(
    session: httpx.AsyncClient, client: LangGraphClient
) -> None:
    await client.runs.wait(None, "noop", input={})
    found = (await session.get("/metrics", params={"format": "json"})).json()
    assert set(found["queue"]) == {
        "n_pending",
        "n_running",
        "pending_runs_wait_time_max_secs",
        "pending_runs_wait_time_med_secs",
        "pending_unblocked_runs_wait_time_max_secs",
    }
    assert set(found["workers"]) == {"max", "active", "available"}
    assert found["workers"]["max"] >= 1
    routes = {each["route"]: each["value"] for each in found["api"]["http_requests_total"]}
    assert routes["/runs/wait"] >= 1


async def test_metrics_for_prometheus_have_the_names_of_langgraphs_server(
    session: httpx.AsyncClient,
) -> None:
    answer = await session.get("/metrics", params={"format": "prometheus"})
    assert answer.headers["content-type"].startswith("text/plain")
    for name in ("lg_api_workers_max", "lg_api_workers_active", "lg_api_workers_available"):
        assert f"\n{name} " in answer.text
    assert "http_requests_total{" in answer.text
    plain = (await session.get("/metrics")).text
    assert "lg_api_workers_max" not in plain
    for name in ("workers_max ", "workers_active ", "workers_available ", "http_requests_total{"):
        assert f"\n{name}" in plain
    assert (await session.get("/metrics", params={"format": "xml"})).status_code == 422


async def test_the_document_has_the_routes_of_this_door(session: httpx.AsyncClient) -> None:
    paths = (await session.get("/openapi.json")).json()["paths"]
    for path in ("/assistants/search", "/threads/{thread_id}/state", "/threads/{thread_id}/history"):
        assert path in paths
    page = await session.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/assistants/{assistant_id}/graph" in page.text
