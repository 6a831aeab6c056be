"""The feed of changes: its readers, other processes, slow readers, limits, and its end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from starlette.types import Message
from tests.kernel.support import record_hints, soon, until
from tests.server.native.support import API, KEY, bearer, own_span
from tests.server.otlp_support import ENGINES, opened
from tests.server.support import Visitor, serving

from perdure import EnqueueRolloutRequest, InMemoryLightningStore, PostgresLightningStore
from perdure.kernel.changes import CHANNEL
from perdure.kernel.ids import derived_ulid
from perdure.memory.records import NewMemoryEvent
from perdure.outbox.model import DeliveryOutcome, Retries
from perdure.outbox.operations import NewEffect, put, settle
from perdure.runtime.app import App
from perdure.server.http import long_responses
from perdure.server.http.server import HttpServer
from perdure.server.native import changes
from perdure.server.table import build_application

NOW_MS = 1_800_000_000_000
FEED = API + "/changes"
SERVER = """
import sys
from perdure import PostgresLightningStore
from perdure.server.http.server import HttpServer
from perdure.server.table import build_application
from perdure.runtime.app import App
server = HttpServer(build_application(App(PostgresLightningStore(sys.argv[1]))))
print(server.start(), flush=True)
sys.stdin.read()
server.stop()
"""


@pytest_asyncio.fixture(params=ENGINES)
async def visitor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Visitor]:
    async with opened(request.param, request, tmp_path) as store, serving(store) as found:
        yield found


@pytest_asyncio.fixture
async def quick() -> AsyncIterator[Visitor]:
    async with InMemoryLightningStore() as store, serving(store) as found:
        yield found


class Reader:
    """Reads a feed event by event."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def block(self) -> dict[str, str]:
        """Return the fields of the next block; a comment has an empty name."""
        fields: dict[str, str] = {}
        while line := (await soon(self.response.content.readline())).decode():
            if line == "\n":
                return fields
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name.rstrip(":")] = value
        raise EOFError

    async def end(self) -> None:
        """Read until the server ends the feed."""
        while await soon(self.response.content.readline()):
            pass

    async def event(self) -> tuple[str, Any]:
        """Return the next event; comments are skipped."""
        while "event" not in (fields := await self.block()):
            pass
        return fields["event"], json.loads(fields["data"])

    async def until(self, **wanted: str) -> list[dict[str, str]]:
        """Return the changes up to the expected one."""
        seen: list[dict[str, str]] = []
        while not seen or any(seen[-1][name] != value for name, value in wanted.items()):
            name, data = await self.event()
            assert name == "change"
            seen.append(data)
        return seen


@asynccontextmanager
async def following(visitor: Visitor, **headers: str) -> AsyncIterator[Reader]:
    async with visitor.session.get(visitor.url + FEED, headers=visitor.headers | headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        reader = Reader(response)
        assert "retry" in await reader.block()
        yield reader


async def _enqueue(visitor: Visitor, **options: Any) -> str:
    answer = await visitor.post(API + "/rollouts", json={"input": 1}, **options)
    return str(answer.body["rollout_id"])


# --- delivered changes ------------------------------------------------------------------------------------


async def test_every_room_tells_what_it_changed(visitor: Visitor) -> None:
    async with following(visitor) as feed:
        name = await _enqueue(visitor)
        assert await feed.until(status="queuing") == [{"kind": "rollout", "id": name, "status": "queuing"}]
        claimed = (await visitor.post(API + "/dequeue", json={"worker_id": "a/b"})).body["items"][0]
        heard = await feed.until(kind="worker")
        assert {"kind": "rollout", "id": name, "status": "preparing"} in heard
        assert heard[-1] == {"kind": "worker", "id": "a/b", "status": "busy"}
        await visitor.post(API + "/spans", json=[own_span(claimed, 1)])
        heard = await feed.until(kind="spans")
        assert {"kind": "rollout", "id": name, "status": "running"} in heard
        assert heard[-1] == {"kind": "spans", "id": name, "status": "added"}
        done = f"{API}/rollouts/{name}/attempts/latest"
        await visitor.ask("PATCH", done, json={"status": "succeeded"})
        await feed.until(kind="rollout", id=name, status="succeeded")
        await visitor.ask("PATCH", f"{API}/rollouts/{name}", json={"metadata": {"a": 1}})
        await feed.until(kind="rollout", id=name, status="succeeded")
        await visitor.ask("PUT", API + "/resources/mine", json={})
        await feed.until(kind="resources", id="mine", status="added")
        await visitor.ask("PUT", API + "/resources/mine", json={})
        await feed.until(kind="resources", id="mine", status="updated")


async def test_effects_sessions_and_memory_are_in_the_feed(visitor: Visitor) -> None:
    services = visitor.app.services
    ns = await services.outbox.ns("write")
    async with following(visitor) as feed:
        (name,) = await services.storage.run(put, [NewEffect("webhooks", "s", "{}")], ns=ns)
        assert await feed.until(kind="effect") == [{"kind": "effect", "id": name, "status": "pending"}]
        await services.storage.run(settle, [DeliveryOutcome(name, 0, "delivered")], Retries(), ns=ns)
        await feed.until(kind="effect", id=name, status="delivered")
        await visitor.post(API + "/sessions/s-1/lines", json={"lines": [{"type": "user"}]})
        await feed.until(kind="session", id="s-1", status="appended")
        event = NewMemoryEvent(
            event_id=derived_ulid(NOW_MS, "1"),
            session_id="s-1",
            timestamp_ms=NOW_MS,
            event_type="user_message",
            role="user",
            text="hello",
        )
        await services.memory.ingest(event)
        await feed.until(kind="memory_event", status="added")


async def test_admins_hear_of_tokens_and_nobody_else() -> None:
    async with InMemoryLightningStore() as store, serving(store, api_key=KEY) as visitor:
        visitor.headers = bearer(KEY)
        read = {"name": "t", "scopes": ["read"], "without_admin": True}
        reader = (await visitor.post(API + "/tokens", json=read)).body
        there = bearer(reader["secret"])
        async with following(visitor) as admins, following(visitor, **there) as readers:
            made = (await visitor.post(API + "/tokens", json={"name": "u", "scopes": ["read"]})).body
            await visitor.ask("DELETE", f"{API}/tokens/{made['token_id']}")
            name = await _enqueue(visitor)
            heard = await admins.until(kind="token", id=made["token_id"], status="revoked")
            assert {each["kind"] for each in heard} <= {"token", "rollout"}
            assert [each["id"] for each in await readers.until(kind="rollout", id=name)] == [name]


async def test_a_feed_is_of_one_namespace(visitor: Visitor) -> None:
    there: Any = {"headers": {"X-Perdure-Namespace": "elsewhere"}}
    async with following(visitor) as here, following(visitor, **there["headers"]) as elsewhere:
        theirs, ours = await _enqueue(visitor, **there), await _enqueue(visitor)
        assert [each["id"] for each in await here.until(status="queuing")] == [ours]
        assert [each["id"] for each in await elsewhere.until(status="queuing")] == [theirs]


async def test_changes_that_come_together_are_sent_together(quick: Visitor) -> None:
    async with following(quick) as feed:
        many = await quick.post(API + "/rollouts/batch", json={"rollouts": [{"input": 1}] * 50})
        names = [each["rollout_id"] for each in many.body["items"]]
        assert [each["id"] for each in await feed.until(id=names[-1])] == names


async def test_nothing_is_told_while_nobody_listens(quick: Visitor) -> None:
    told = record_hints(quick.app.store.storage)  # type: ignore[attr-defined]
    await _enqueue(quick)
    assert CHANNEL not in {channel for hints in told for channel, _ in hints}
    async with following(quick) as feed:
        await _enqueue(quick)
        await feed.until(status="queuing")
    assert CHANNEL in {channel for hints in told for channel, _ in hints}


async def test_an_object_is_told_of_by_its_latest_status() -> None:
    keys = ["1/rollout/queuing/a", "1/rollout/queuing/b", "1/rollout/running/a", "1/worker/busy/x/y"]
    events = changes.events_from(keys).decode().split("\n\n")
    assert [event.partition("data: ")[2] for event in events if event] == [
        '{"kind":"rollout","id":"b","status":"queuing"}',
        '{"kind":"rollout","id":"a","status":"running"}',
        '{"kind":"worker","id":"x/y","status":"busy"}',
    ]
    assert changes.events_from(None) == changes.RESYNC
    assert changes.events_from([]) == b""


# --- from other processes ---------------------------------------------------------------------------------


@contextmanager
def another_server(url: str) -> Iterator[str]:
    """Start another server process on the same database."""
    command = [sys.executable, "-c", SERVER, url]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        child.stdin.close()
        assert child.wait(30) == 0
        child.stdout.close()


async def test_a_feed_hears_of_what_another_process_changed(database_url: str) -> None:
    with another_server(database_url) as other:
        async with PostgresLightningStore(database_url) as store, serving(store) as visitor:
            # The other process starts to listen with its first hint.
            there = Visitor(other, visitor.session, visitor.app)
            name = await _enqueue(there)
            async with following(visitor) as feed:
                await _heard(feed, there, name)
                await there.post(f"{API}/rollouts/{name}/cancel")
                await feed.until(kind="rollout", id=name, status="cancelled")


async def _heard(feed: Reader, there: Visitor, name: str) -> None:
    """Let the other process change one rollout until the feed, which must get a hint first, reports it."""
    reading = asyncio.ensure_future(feed.event())
    while not reading.done():
        await there.ask("PATCH", f"{API}/rollouts/{name}", json={"metadata": {}})
        await asyncio.wait([reading], timeout=0.05)
    _, change = reading.result()
    assert change["id"] == name


# --- slow, many, and ended --------------------------------------------------------------------------------


async def test_a_slow_reader_is_told_to_read_again() -> None:
    """Use the application itself, so that the test controls the reader's slowness."""
    sent: asyncio.Queue[bytes] = asyncio.Queue()
    may_send = asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await sent.put(message["body"])
            await may_send.wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async with InMemoryLightningStore() as store:
        scope = {
            "type": "http",
            "method": "GET",
            "path": FEED,
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        feed = asyncio.ensure_future(build_application(App(store))(scope, receive, send))
        assert await soon(sent.get()) == long_responses.GREETING
        for start in range(0, changes.KEPT_CHANGES + 1, 500):
            numbers = range(start, start + 500)
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in numbers])
        stream = next(iter(store.storage.signals._streams[CHANNEL]))  # type: ignore[attr-defined]
        await until(lambda: bool(stream._overrun))
        assert len(stream._keys) <= changes.KEPT_CHANGES
        may_send.set()
        while (data := await soon(sent.get())) != changes.RESYNC:
            assert data.startswith(b"event: change")
        name = (await store.enqueue_rollout("later")).rollout_id
        assert name.encode() in await soon(sent.get())
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)
        assert store.storage.signals.wanted(CHANNEL) is False


async def test_an_idle_feed_shows_that_it_lives(quick: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_responses, "HEARTBEAT_SECONDS", 0.02)
    async with following(quick) as feed:
        for _ in range(3):
            assert await feed.block() == {"": "still here"}


async def test_an_actor_has_so_many_feeds_and_no_more(
    quick: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "FEEDS_AN_ACTOR", 2)
    async with following(quick):
        async with following(quick):
            refused = await quick.get(FEED)
            assert (refused.status, refused.body["code"]) == (429, "too_many_requests")
        await until(lambda: quick.app.feeds["anonymous"] == 1)
        async with following(quick) as feed:
            await _enqueue(quick)
            await feed.until(status="queuing")
    await until(lambda: not quick.app.feeds)
    assert quick.app.store.storage.signals.wanted(CHANNEL) is False  # type: ignore[attr-defined]


async def test_a_feed_ends_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_responses, "HEARTBEAT_SECONDS", 0.02)
    async with InMemoryLightningStore() as store, serving(store, api_key=KEY) as visitor:
        visitor.headers = bearer(KEY)
        made = (
            await visitor.post(API + "/tokens", json={"name": "t", "scopes": ["read"], "without_admin": True})
        ).body
        async with following(visitor, **bearer(made["secret"])) as feed:
            await visitor.ask("DELETE", f"{API}/tokens/{made['token_id']}")
            await feed.end()
        assert (await visitor.get(FEED, headers=bearer(made["secret"]))).status == 401


async def test_a_server_that_stops_ends_its_feeds() -> None:
    async with InMemoryLightningStore() as store:
        app = App(store)
        server = HttpServer(build_application(app))
        async with aiohttp.ClientSession() as session, server:
            visitor = Visitor(server.url, session, app)
            async with following(visitor) as feed, asyncio.timeout(4):
                stopping = asyncio.ensure_future(asyncio.to_thread(server.stop))
                await feed.end()
                await stopping
        assert not app.feeds


async def test_a_head_of_the_feed_ends_at_once(quick: Visitor) -> None:
    answer = await soon(quick.ask("HEAD", FEED))
    assert answer.status == 200
    assert not quick.app.feeds
