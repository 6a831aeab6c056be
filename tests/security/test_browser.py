"""Web pages in a real browser: what a page of another origin sends to our server changes nothing."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Response
from tests.cli.command import Server
from tests.server.native.support import Worker, request
from tests.support.browser import browsing

from perdure import SqliteLightningStore
from perdure.runs.queue import RunQueue
from perdure.runtime.app import App

EVIL = "evil.test"
WRITES: dict[str, Any] = {
    "/api/v1/rollouts": {"input": "written by a page"},
    "/api/v1/tokens": {"name": "first", "scopes": ["admin"]},
    "/runs": {"assistant_id": "echo", "input": {}},
    "/runs/cancel": {"status": "all"},
}
# Each entry sends one write, and resolves when the browser knows what became of it.
ATTACKS = """
async ([target, path, body]) => {
    const url = target + path, text = JSON.stringify(body);
    const seen = {};
    const send = async (name, options) => {
        try {
            const response = await fetch(url, {method: "POST", ...options});
            seen[name] = response.type === "opaque" ? "opaque" : response.status;
        } catch (error) { seen[name] = "blocked"; }
    };
    const loads = (element, parent) => new Promise((resolve) => {
        element.onload = () => resolve("loaded");
        element.onerror = () => resolve("failed");
        parent.append(element);
    });
    const posts = async (enctype) => {
        const frame = Object.assign(document.createElement("iframe"), {name: path + enctype});
        document.body.append(frame);
        const form = Object.assign(document.createElement("form"), {action: url, method: "POST", enctype});
        form.target = frame.name;
        // As text/plain, a field is sent as name=value: the value closes the JSON that the name opens.
        const field = {name: text.slice(0, -1) + ',"x":"', value: '"}'};
        form.append(Object.assign(document.createElement("input"), field));
        document.body.append(form);
        const loaded = new Promise((resolve) => { frame.onload = resolve; });
        form.submit();
        await loaded;
        seen[`form ${enctype}`] = "loaded";
    };
    await send("cors json", {headers: {"Content-Type": "application/json"}, body: text});
    await send("cors typeless", {body: new Blob([text])});
    await send("no-cors typeless", {mode: "no-cors", body: new Blob([text])});
    await send("no-cors bytes", {mode: "no-cors", body: new TextEncoder().encode(text)});
    await send("no-cors text", {mode: "no-cors", body: text});
    await send("no-cors empty", {mode: "no-cors"});
    await posts("text/plain");
    await posts("application/x-www-form-urlencoded");
    await posts("multipart/form-data");
    seen.beacon = navigator.sendBeacon(url, new Blob([text]));
    seen["beacon text"] = navigator.sendBeacon(url, text);
    seen.image = await loads(Object.assign(new Image(), {src: url}), document.body);
    seen.script = await loads(Object.assign(document.createElement("script"), {src: url}), document.head);
    seen.socket = await new Promise((resolve) => {
        const socket = new WebSocket(url.replace("http", "ws"));
        socket.onopen = () => resolve("open");
        socket.onerror = () => resolve("failed");
    });
    // A beacon has no result; what is sent after it on the same way has one.
    await send("last", {mode: "no-cors", body: new Blob([text]), keepalive: true});
    return seen;
}
"""
REFUSED = {
    "cors json": "blocked",
    "cors typeless": "blocked",
    "image": "failed",
    "script": "failed",
    "socket": "failed",
}


class _Blank(BaseHTTPRequestHandler):
    """Answers with an empty page."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>page</title><body></body>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """The page is of no interest."""


@pytest.fixture
def page_port() -> Iterator[int]:
    """The port of a server of pages, which is not ours."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Blank)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    async with browsing(f"--host-resolver-rules=MAP {EVIL} 127.0.0.1") as started:
        yield started


@asynccontextmanager
async def server_with_work(folder: Path, command: str, *options: str) -> AsyncIterator[Server]:
    """A server whose database has a queued rollout and a pending run, which a page might cancel."""
    async with SqliteLightningStore(folder / "perdure.db") as store:
        await store.enqueue_rollout("mine")
        threads = App(store).services.threads
        await Worker(RunQueue.beside(threads)).register()
        await threads.create_run(request())
    with Server(folder, command, *options) as server:
        yield server


def rows(folder: Path) -> list[str]:
    """Everything in the database but the heartbeats of its workers."""
    with closing(sqlite3.connect(f"file:{folder / 'perdure.db'}?mode=ro", uri=True)) as connection:
        return sorted(line for line in connection.iterdump() if not line.startswith('INSERT INTO "workers"'))


async def attack(page: Page, target: str) -> list[Response]:
    """Try every kind of write from a page; gives the responses of our server."""
    responses: list[Response] = []
    page.on(
        "response", lambda response: responses.append(response) if response.url.startswith(target) else None
    )
    for path, body in WRITES.items():
        seen = await page.evaluate(ATTACKS, [target, path, body])
        assert {name: seen[name] for name in REFUSED} == REFUSED, path
    return responses


async def navigate_by_form(page: Page, target: str) -> Response:
    """Leave the page by posting a form to the server."""
    async with page.expect_navigation() as navigation:
        await page.evaluate(
            """(url) => {
                const form = Object.assign(document.createElement("form"), {action: url, method: "POST"});
                document.body.append(form);
                form.submit();
            }""",
            target + "/api/v1/threads",
        )
    response = await navigation.value
    assert response is not None
    return response


async def check_attacks(page: Page, server: Server, folder: Path) -> None:
    """Every attack reaches the server and is refused, and the database is as before."""
    before = rows(folder)
    responses = await attack(page, server.url)
    posted = [each for each in responses if each.request.method == "POST"]
    assert len(posted) >= 8 * len(WRITES)
    assert {each.status for each in posted} == {403}
    # 400 answers the question of a browser whether it may send something.
    assert {each.status for each in responses} <= {403, 400}
    assert (await navigate_by_form(page, server.url)).status == 403
    assert rows(folder) == before
    # Had the page made the first token, its owner would be locked out.
    assert server.get("/api/v1/tokens")[0] == 200


async def open_link(page: Page, url: str) -> int:
    """Follow a link from the page; gives the status."""
    async with page.expect_navigation() as navigation:
        await page.evaluate("(url) => { location.href = url }", url)
    opened = await navigation.value
    assert opened is not None
    return opened.status


async def test_against_serve_a_page_of_another_origin_changes_nothing(
    tmp_path: Path, browser: Browser, page_port: int
) -> None:
    async with server_with_work(tmp_path, "serve", "--no-worker") as server:
        page = await browser.new_page()
        await page.goto(f"http://127.0.0.1:{page_port}/")
        await check_attacks(page, server, tmp_path)
        await page.goto(f"http://{EVIL}:{page_port}/")
        assert await open_link(page, server.url + "/docs") == 200
        # The page's own name, now that of our address: its requests are same-origin.
        before = rows(tmp_path)
        rebound = await page.goto(server.url.replace("127.0.0.1", EVIL) + "/docs")
        assert rebound is not None
        assert rebound.status == 403
        sent = "() => fetch('/api/v1/threads', {method: 'POST'}).then((response) => response.status)"
        assert await page.evaluate(sent) == 403
        assert rows(tmp_path) == before


async def test_against_dev_a_page_of_another_host_changes_nothing_and_a_local_one_is_answered(
    tmp_path: Path, browser: Browser, page_port: int
) -> None:
    async with server_with_work(tmp_path, "dev", "--grpc-port", "0") as server:
        page = await browser.new_page()
        await page.goto(f"http://{EVIL}:{page_port}/")
        await check_attacks(page, server, tmp_path)
        await page.goto(f"http://{EVIL}:{page_port}/")
        assert await open_link(page, server.url + "/api/v1/rollouts") == 403
        await page.goto(f"http://localhost:{page_port}/")
        sent = """(url) => fetch(url, {
            method: "POST", headers: {"Content-Type": "application/json"}, body: '{"input": 1}'
        }).then((response) => response.status)"""
        assert await page.evaluate(sent, server.url + "/api/v1/rollouts") == 201
