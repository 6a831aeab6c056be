"""An embedded database with its page and command: on a port of its own, and mounted in a web app."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp

from perdure import Agents, Perdure, PerdureClient, sync
from perdure.errors import DatabaseOwned, InvalidInput, StartRefused
from perdure.server.http.server import HttpServer

KEY = "a-key-of-some-length"
agents = Agents()


@agents.agent
async def greet(ctx: Any, input: Any) -> Any:
    await ctx.emit("hello")
    return {"greeting": f"hello {input}"}


async def run_command(*words: str, cwd: Path) -> Any:
    """Run `perdure` as another process, and return its JSON."""
    hidden = ("PERDURE_URL", "PERDURE_API_KEY", "PERDURE_DATABASE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "perdure.cli", *words, "--json",
        cwd=cwd, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)


async def test_an_embedded_file_has_page_and_command(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    async with Perdure(url, agents=agents, serve=0) as perdure:
        assert perdure.url is not None
        assert perdure.url.startswith("http://127.0.0.1:")
        ended = await perdure.run("greet", "Ada", thread_id="ada", if_not_exists="create")
        async with httpx.AsyncClient(base_url=perdure.url, follow_redirects=True) as browser:
            page = await browser.get("/")
            assert "text/html" in page.headers["content-type"]
            assert page.url.path == "/ui/"
            strange = await browser.get("/api/v1/health", headers={"Host": "evil.example"})
            assert strange.status_code == 403
        with pytest.raises(DatabaseOwned, match=perdure.url):
            async with Perdure(url):
                pass
        at = ("--url", perdure.url)
        shown = await run_command("run", "show", ended.run.run_id, *at, cwd=tmp_path)
        assert ended.run.run_id in json.dumps(shown)
        created = await run_command(
            "run", "create", "greet", '"Bob"', "--wait", "--url", perdure.url, cwd=tmp_path
        )
        assert "hello Bob" in json.dumps(created)
        port = int(perdure.url.rpartition(":")[2])
        with pytest.raises(StartRefused):
            async with Perdure("memory:", serve=port):
                pass
    assert perdure.url is None
    # The port is free again.
    async with Perdure("memory:", serve=port) as again:
        assert again.url == f"http://127.0.0.1:{port}"


async def test_a_port_is_checked_and_without_one_there_is_no_url() -> None:
    with pytest.raises(InvalidInput, match="port"):
        Perdure("memory:", serve=70_000)
    async with Perdure("memory:") as perdure:
        assert perdure.url is None


async def test_what_is_served_listens_on_loopback_whatever_the_settings_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PERDURE_HOST", "0.0.0.0")
    async with Perdure("memory:", serve=0) as perdure:
        assert perdure.settings.host == "127.0.0.1"
        assert perdure.url is not None
        assert perdure.url.startswith("http://127.0.0.1:")


def test_programs_without_async_serve_too() -> None:
    with sync.Perdure("memory:", agents=agents, serve=0) as perdure:
        assert httpx.get(f"{perdure.url}/api/v1/health").json()["status"] == "ok"


@asynccontextmanager
async def web_app(path: str = "/perdure", **options: Any) -> AsyncIterator[tuple[str, Perdure]]:
    """A FastAPI app with perdure mounted in it, served by a real server; its URL, and perdure."""
    perdure = Perdure("memory:", agents=agents, **options)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with perdure:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/greet/{name}")
    async def greet_somebody(name: str) -> Any:
        return (await perdure.run("greet", name)).values

    app.mount(path, perdure.asgi)
    async with serving(app) as url:
        yield url, perdure


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an app in this event loop, as uvicorn does it for a web app."""
    http = HttpServer(app)
    task = asyncio.create_task(http.serve())
    await http.accepting.wait()
    try:
        yield http.url
    finally:
        http.stop()
        await task


async def test_a_mounted_app_answers_nobody_without_a_key() -> None:
    async with web_app() as (url, _), httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/greet/Ada")).json() == {"greeting": "hello Ada"}
        for path in ("/api/v1/runs", "/threads/search", "/api/v1/unknown", "/metrics"):
            answer = await client.get(f"/perdure{path}")
            assert answer.status_code in (401, 405), (path, answer.text)
        refused = await client.get("/perdure/api/v1/runs")
        assert "api_key" in refused.json()["detail"]
        # Its pages hold no data, and are below the mount.
        page = await client.get("/perdure/", follow_redirects=True)
        assert page.status_code == 200
        assert page.url.path == "/perdure/ui/"
        assert 'href="/perdure/ui/"' in page.text
        assert (await client.get("/perdure/healthz")).status_code == 200


async def test_a_mounted_app_answers_with_a_key_a_token_or_openly_where_that_is_said() -> None:
    async with web_app(api_key=KEY) as (url, perdure):
        async with PerdureClient(f"{url}/perdure", token=KEY) as client:
            assert (await client.run("greet", "Bob")).values == {"greeting": "hello Bob"}
        token = await perdure.services.access.create_token("operator", scopes=["read", "write", "admin"])
        async with httpx.AsyncClient(base_url=url) as http:
            headers = {"Authorization": f"Bearer {token.secret}"}
            assert (await http.get("/perdure/api/v1/runs", headers=headers)).status_code == 200
            assert (await http.get("/perdure/api/v1/runs")).status_code == 401
    async with (
        web_app("/inner/queue", insecure_no_auth=True, host="0.0.0.0") as (url, _),
        httpx.AsyncClient(base_url=url) as http,
    ):
        assert (await http.get("/inner/queue/api/v1/runs")).status_code == 200


async def test_a_mounted_app_streams_and_ends_its_streams_when_it_closes() -> None:
    async with web_app(api_key=KEY) as (url, perdure):
        async with PerdureClient(f"{url}/perdure", token=KEY) as client:
            events = [event.event async for event in client.stream_events("greet", "Ada")]
            assert "custom" in events
        await perdure.__aexit__(None, None, None)
        async with httpx.AsyncClient(base_url=url) as http:
            headers = {"Authorization": f"Bearer {KEY}"}
            closed = await http.get("/perdure/api/v1/runs", headers=headers)
            assert closed.status_code == 503
            assert closed.json()["code"] == "storage_closed"
