"""Tools for coding agents, as the official client of the Model Context Protocol lists and calls them."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from tests.access.support import access_of
from tests.memory.conftest import World

from perdure import InMemoryLightningStore
from perdure.integrations.mcp.server import TOOLS, build_server
from perdure.kernel.config import SecretKey, Settings
from perdure.runtime.app import App
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store
from perdure.server.http.server import HttpServer
from perdure.server.table import build_application

SECRET = SecretKey("a-key-of-some-length")
TEXT = "The migration of the billing database failed on Friday."
READING = {name for name, tool in TOOLS.items() if tool.endpoint.scope == "read"}


class Served:
    """A server over HTTP, with an event in its memory."""

    def __init__(self, app: App, url: str) -> None:
        self.app = app
        self.url = url + "/api/v1/mcp"

    @asynccontextmanager
    async def client(self, secret: str) -> AsyncIterator[Any]:
        headers = {"Authorization": f"Bearer {secret}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(self.url, http_client=http)) as client,
        ):
            yield client


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with InMemoryLightningStore() as store:
        app = App(store, Settings(api_key=SECRET))
        await World(app.services).ingest(World(app.services).event(TEXT))
        async with HttpServer(build_application(app)) as http:
            yield Served(app, http.url)


async def _check(client: Any) -> None:
    """List the tools, and call some of them."""
    found = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(found) == set(TOOLS)
    assert found["memory_search"].input_schema["required"] == ["query"]
    assert found["memory_search"].annotations.read_only_hint
    result = await client.call_tool("memory_search", {"query": "billing migration"})
    assert not result.is_error
    (hit,) = result.structured_content["items"]
    assert hit["events"][0]["event_id"] == hit["id"]
    assert "billing" in result.content[0].text
    assert (await client.call_tool("list_runs", {})).structured_content["items"] == []
    assert (await client.call_tool("memory_contents", {})).structured_content == {"items": []}
    for name, arguments, words in (
        ("why", {"id": "nobody"}, "not_found"),
        ("approve", {"approval_id": "nobody"}, "not_found"),
        ("memory_search", {}, "invalid_input"),
        ("memory_search", {"query": "a", "limit": 10_000}, "invalid_input"),
        ("memory_search", {"query": "a", "unknown": 1}, "invalid_input"),
        ("nobody", {}, "there is no tool"),
    ):
        refused = await client.call_tool(name, arguments)
        assert refused.is_error, name
        assert words in refused.content[0].text


async def test_over_http(served: Served) -> None:
    async with served.client(str(SECRET)) as client:
        await _check(client)


async def test_over_stdio(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    services = Services(open_store(url, watchdog_interval=None), Settings())
    await World(services).ingest(World(services).event(TEXT))
    await services.close()
    command = [sys.executable, "-m", "perdure.cli", "mcp", "--database", url]
    environment = {name: os.environ[name] for name in ("PYTHONPATH", "PATH") if name in os.environ}
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=environment)
    async with Client(parameters) as client:
        await _check(client)


async def test_the_scopes_of_the_token_decide(served: Served) -> None:
    access = access_of(served.app)
    _, reader = await access.create_token("reader", scopes=("read",), actor="test")
    async with served.client(reader) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING
        refused = await client.call_tool("approve", {"approval_id": "a"})
        assert refused.is_error
        assert "scope 'write'" in refused.content[0].text
    async with httpx2.AsyncClient() as http:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        headers = {"Accept": "application/json, text/event-stream"}
        assert (await http.post(served.url, json=message, headers=headers)).status_code == 401
        known = {**headers, "Authorization": f"Bearer {SECRET}"}
        for bad in (b"", b"[", b'"text"', b"\xff"):
            answer = await http.post(served.url, content=bad, headers=known)
            assert answer.status_code < 500, bad


async def test_what_breaks_inside_is_told_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*given: Any, **options: Any) -> Any:
        raise RuntimeError("secret words of the inside")

    monkeypatch.setattr("perdure.diagnostics.service.Diagnostics.why", broken)
    async with InMemoryLightningStore() as store:
        services = App(store, Settings()).services
        async with Client(build_server(services)) as client:
            result = await client.call_tool("why", {"id": "a"})
    assert result.is_error
    assert "secret" not in str(result)
