"""The section `http` of a langgraph.json on a running server: CORS, headers, prefix, disabled routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client
from tests.server.langgraph.conftest import serving
from tests.server.langgraph.project import project

from perdure.testing.serving import ServerProcess

PAGE = "https://board.a.example"
HTTP = {
    "cors": {"allow_origin_regex": r"https://[a-z]+\.a\.example", "expose_headers": ["X-Own"], "max_age": 7},
    "configurable_headers": {"include": ["x-tenant-*"], "exclude": ["x-tenant-key"]},
    "mount_prefix": "/agents/of/mine",
    "disable_store": True,
    "disable_meta": True,
    "disable_webhooks": True,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = project(tmp_path_factory.mktemp("http"), ("noop", "configured"), http=HTTP, env=".env")
    with serving(folder, "memory:") as started:
        yield started


def asks_first(url: str, origin: str) -> httpx.Response:
    """Send the preflight request of a browser for JSON."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,x-api-key",
    }
    return httpx.options(f"{url}/threads", headers=headers)


def test_pages_of_the_named_origins_may_call(served: ServerProcess) -> None:
    first = asks_first(served.url, PAGE)
    assert first.status_code == 200
    assert first.headers["access-control-allow-origin"] == PAGE
    assert first.headers["access-control-max-age"] == "7"
    made = httpx.post(f"{served.url}/threads", json={}, headers={"Origin": PAGE})
    assert made.status_code == 200
    assert made.headers["access-control-allow-origin"] == PAGE
    assert "X-Own" in made.headers["access-control-expose-headers"]
    for stranger in ("https://a.example", "https://board.a.example.evil.example", "http://localhost:3000"):
        assert "access-control-allow-origin" not in asks_first(served.url, stranger).headers
        refused = httpx.post(f"{served.url}/threads", json={}, headers={"Origin": stranger})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers


async def test_a_run_finds_the_headers_of_its_request(served: ServerProcess) -> None:
    sent = {"X-Tenant-Name": "acme", "X-Tenant-Key": "hidden", "X-Other": "other", "X-Request-ID": "asked-1"}
    given = {"x-tenant-name": "somebody else", "mine": 1, "langgraph_request_id": "forged"}
    async with get_client(url=served.url, headers=sent) as client:
        found: Any = await client.runs.wait(None, "configured", input={}, config={"configurable": given})
    seen = found["seen"]
    shown = {key: seen.get(key) for key in ("x-tenant-name", "mine", "langgraph_request_id", "user_id")}
    assert shown == {
        "x-tenant-name": "acme",
        "mine": 1,
        "langgraph_request_id": "asked-1",
        "user_id": "",
    }
    assert not {"x-tenant-key", "x-other"} & set(seen)


async def test_the_server_answers_below_its_prefix(served: ServerProcess) -> None:
    async with get_client(url=served.url + HTTP["mount_prefix"]) as client:  # type: ignore[operator]
        thread = await client.threads.create()
        parts = [
            part
            async for part in client.runs.stream(
                thread["thread_id"], "noop", input={}, stream_mode="values", stream_resumable=True
            )
        ]
        assert parts[0].event == "metadata"
        run_id = parts[0].data["run_id"]
        assert (await client.runs.join(thread["thread_id"], run_id)) is not None


def test_disabled_routes_are_gone_and_others_are_not(served: ServerProcess) -> None:
    for method, path in (
        ("PUT", "/store/items"),
        ("POST", "/store/items/search"),
        ("GET", "/info"),
        ("GET", "/metrics"),
        ("GET", "/docs"),
        ("GET", "/docs/guide/index.html"),
        ("GET", "/llms.txt"),
        ("GET", "/openapi.json"),
        ("GET", "/agents/of/mine/metrics"),
    ):
        assert httpx.request(method, served.url + path).status_code == 404, path
    assert httpx.get(f"{served.url}/agents/of/minee/ok").status_code == 404
    assert httpx.get(f"{served.url}/ok?check_db=1").json() == {"ok": True}
    assert httpx.post(f"{served.url}/assistants/search", json={}).status_code == 200


async def test_where_webhooks_are_disabled_a_run_has_none(served: ServerProcess) -> None:
    async with get_client(url=served.url) as client:
        run = await client.runs.create(None, "noop", input={}, webhook="http://127.0.0.1/never")
    assert run["kwargs"]["webhook"] is None  # type: ignore[typeddict-item]


def test_a_project_with_wrong_sections_is_served_and_told(tmp_path: Path) -> None:
    folder = project(
        tmp_path,
        ("noop",),
        http={"cors": "*", "disable_runs": 1, "app": "./nowhere.py:app", "colour": "blue"},
        webhooks={"url": {"require_https": "yes"}},
        env=".env",
        novelty={},
        ui={"a": "b"},
    )
    with serving(folder, "memory:") as started:
        assert httpx.post(f"{started.url}/assistants/search", json={}).json()[0]["graph_id"] == "noop"
        assert httpx.post(f"{started.url}/runs/wait", json={"assistant_id": "noop"}).status_code == 404
        cors = httpx.post(f"{started.url}/threads", json={}, headers={"Origin": PAGE})
        assert cors.status_code == 403
        told = started.log()
    for words in (
        "http.cors",
        "http.disable_runs",
        "http.app",
        "http.colour",
        "webhooks.url",
        ".env",
        "ui is",
    ):
        assert words in told, told
