"""Streams of events over HTTP: whole, from any position, filtered, of a thread, slow, and their end."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from starlette.types import Message
from tests.kernel.support import soon, until, until_true
from tests.server.native.cutter import cut_line
from tests.server.native.support import (
    API,
    KEY,
    QUICK,
    House,
    Worker,
    bearer,
    gathered,
    housed,
    request,
    streaming,
    told,
)

from perdure import InMemoryLightningStore
from perdure.client.native import PerdureClient
from perdure.kernel.errors import InvalidInput, NotFound, TooManyRequests, Unreachable
from perdure.runtime.app import App
from perdure.server.http import long_responses
from perdure.server.http.server import HttpServer
from perdure.server.native import events
from perdure.server.table import build_application
from perdure.streams.model import StreamEvent


def shown(found: list[StreamEvent]) -> list[tuple[str, Any]]:
    return [(event.event, json.loads(event.body)) for event in found]


async def test_a_run_is_streamed_to_its_end(house: House) -> None:
    run = await house.run(input=1)
    reading = asyncio.ensure_future(gathered(house.client.stream_run(run.run_id)))
    await house.worker.do({"n": 1}, events=["é\n", {"b": 2}])
    found = await soon(reading)
    assert shown(found)[:3] == [
        ("metadata", {"run_id": run.run_id, "attempt": 1}),
        ("custom", "é\n"),
        ("custom", {"b": 2}),
    ]
    assert shown(found)[-1] == ("end", {"status": "success"})
    assert [event.seq for event in found] == list(range(1, len(found) + 1))
    assert {(event.source, event.attempt) for event in found} == {(run.run_id, 1)}


async def test_a_stream_goes_on_after_any_event(house: House) -> None:
    await house.client.create_thread("t")
    run = await house.run(thread_id="t")
    await house.worker.do({"n": 1}, events=list(range(5)))
    whole = await gathered(house.client.stream_run(run.run_id))
    for number, event in enumerate(whole, 1):
        rest = await gathered(house.client.stream_run(run.run_id, event.id))
        assert [(each.id, each.event, each.body) for each in rest] == [
            (each.id, each.event, each.body) for each in whole[number:]
        ]


async def test_a_stream_says_where_it_stands(quick: House) -> None:
    run = await quick.run()
    async with streaming(quick.visitor, f"{API}/runs/{run.run_id}/stream") as reader:
        assert await reader.block() == {"retry": "2000", "": "the feed begins"}
        await quick.worker.do()
        blocks = await reader.rest()
    assert [block.get("event") for block in blocks] == ["metadata", "end", None]
    assert blocks[-1] == {"": "that was all"}
    assert blocks[0]["id"].endswith("-1")


async def test_only_some_modes(quick: House) -> None:
    run = await quick.run(on_completion="keep")
    work = await quick.worker.claim()
    for event in ("updates", "custom", "updates|sub:1", "values"):
        await quick.worker.emit(work.held, 1, event=event)
    await quick.worker.end(work)
    path = f"{API}/runs/{run.run_id}/stream?stream_mode=updates&stream_mode=messages"
    async with streaming(quick.visitor, path) as reader:
        blocks = await reader.rest()
    names = [block["event"] for block in blocks if "event" in block]
    assert names == ["metadata", "updates", "updates|sub:1", "end"]


async def test_what_is_filtered_away_leaves_a_sign_of_life(
    quick: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_responses, "HEARTBEAT_SECONDS", 0.02)
    run = await quick.run()
    path = f"{API}/runs/{run.run_id}/stream?stream_mode=values"
    async with streaming(quick.visitor, path) as reader:
        await reader.block()
        work = await quick.worker.claim()
        assert (await reader.event())["event"] == "metadata"
        await quick.worker.emit(work.held, 1)
        assert await reader.block() == {"": "still here"}


async def test_the_stream_of_a_thread(house: House) -> None:
    """All its runs in order; from now on, from the start, or from any position."""
    await house.client.create_thread("t")
    first = await house.run(thread_id="t")
    await house.worker.do(events=["before"])
    second = await house.run(thread_id="t")

    def last(event: StreamEvent) -> bool:
        return event.event == "end" and event.source == second.run_id

    async with streaming(house.visitor, f"{API}/threads/t/stream") as now:
        await now.block()
        place = await now.block()
        await house.worker.do(events=["after"])
        assert [json.loads((await now.event())["data"]) for _ in range(3)] == [
            {"run_id": second.run_id, "attempt": 1},
            "after",
            {"status": "success"},
        ]
    whole = await gathered(house.client.stream_thread("t", "-1"), last)
    assert [event.source for event in whole] == [first.run_id] * 3 + [second.run_id] * 3
    assert [event.seq for event in whole] == [1, 2, 3, 4, 5, 6]
    assert place == {"id": "0-3"}
    rest = await gathered(house.client.stream_thread("t", whole[2].id), last)
    assert [event.id for event in rest] == [event.id for event in whole[3:]]


async def test_from_now_on_is_resumed_before_any_event(house: House) -> None:
    """A connection cut before the first event leaves nothing out."""
    await house.client.create_thread("t")
    await house.run(thread_id="t")
    await house.worker.do(events=["before"])
    run = await house.run(thread_id="t")
    begun = asyncio.Event()

    def lengths() -> Any:
        # The head of the response and the two first blocks, and not a byte more.
        yield 500
        begun.set()

    async with cut_line(house.visitor.url, lengths()) as cutter, PerdureClient(cutter.url, **QUICK) as client:
        reading = asyncio.ensure_future(gathered(client.stream_thread("t"), lambda each: each.event == "end"))
        await until(lambda: bool(house.visitor.app.streams))
        await house.worker.do(events=["x" * 500])
        found = await soon(reading)
        assert begun.is_set()
        assert cutter.cuts == 1
    assert [event.event for event in found] == ["metadata", "custom", "end"]
    assert {event.source for event in found} == {run.run_id}


async def test_what_cannot_be_streamed(quick: House) -> None:
    run = await quick.run()
    for asking in (
        quick.client.stream_run("nobody"),
        quick.client.stream_thread("nowhere"),
        quick.client.stream(request(assistant_id="nobody")),
    ):
        with pytest.raises(NotFound):
            await gathered(asking)
    with pytest.raises(InvalidInput):
        await gathered(quick.client.stream_run(run.run_id, "yesterday"))
    path = f"{API}/runs/{run.run_id}/stream"
    answer = await quick.visitor.get(path, headers={"Last-Event-ID": "yesterday"})
    assert (answer.status, answer.body["code"]) == (422, "invalid_input")
    assert (await soon(quick.visitor.ask("HEAD", path))).status == 200
    assert (await quick.visitor.ask("HEAD", f"{API}/runs/nobody/stream")).status == 404
    assert not quick.visitor.app.streams


async def test_a_run_is_made_and_streamed(house: House) -> None:
    reading = asyncio.ensure_future(gathered(house.client.stream(request(input=1))))
    ended = await house.worker.do({"n": 1}, events=["a"])
    found = await soon(reading)
    assert [event.event for event in found] == ["metadata", "custom", "end"]
    assert {event.source for event in found} == {ended.run_id}


async def test_where_the_new_run_is_stands_in_the_headers(quick: House) -> None:
    async with streaming(
        quick.visitor, API + "/runs/stream", "POST", json={"assistant_id": "echo"}
    ) as reader:
        (run,) = await quick.client.list_runs()
        headers = reader.response.headers
        assert headers["Location"] == f"{API}/runs/{run.run_id}/stream"
        assert headers["Content-Location"] == f"{API}/runs/{run.run_id}"


@pytest.mark.parametrize("how", ["on_disconnect", "cancel_on_disconnect"])
async def test_who_hangs_up_cancels_what_it_reads(house: House, how: str) -> None:
    body = {"assistant_id": "echo", "thread_id": "t", "if_not_exists": "create"}
    if how == "on_disconnect":
        opening = streaming(
            house.visitor, API + "/runs/stream", "POST", json={**body, "on_disconnect": "cancel"}
        )
    else:
        run = await house.run(thread_id="t", if_not_exists="create")
        opening = streaming(house.visitor, f"{API}/runs/{run.run_id}/stream?cancel_on_disconnect=true")
    async with opening as reader:
        work = await house.worker.claim()
        assert (await reader.event())["event"] == "metadata"

    async def cancelled() -> bool:
        return (await house.client.get_run(work.run.run_id)).status == "interrupted"

    await until_true(cancelled)


# --- cut connections --------------------------------------------------------------------------------------


async def test_a_line_that_is_cut_anywhere_loses_and_doubles_nothing(house: House) -> None:
    """Cut after every possible number of bytes, first one by one, then at random."""
    await house.client.create_thread("t")
    run = await house.run(thread_id="t")
    await house.worker.do(events=[{"n": number, "text": "ö" * number} for number in range(30)])
    whole = [(e.id, e.event, e.body) for e in await gathered(house.client.stream_run(run.run_id))]
    chance = random.Random(7)

    def lengths() -> Any:
        yield from range(300, 420, 7)
        for _ in range(20):
            yield chance.randrange(300, 1500)

    async with cut_line(house.visitor.url, lengths()) as cutter, PerdureClient(cutter.url, **QUICK) as client:
        for _ in range(6):
            found = await gathered(client.stream_run(run.run_id))
            assert [(e.id, e.event, e.body) for e in found] == whole
    assert cutter.cuts > 20


async def test_a_new_run_is_streamed_over_a_line_that_is_cut(house: House) -> None:
    async with (
        cut_line(house.visitor.url, iter([10, 350, 700])) as cutter,
        PerdureClient(cutter.url, **QUICK) as client,
    ):
        reading = asyncio.ensure_future(gathered(client.stream(request(on_completion="keep"))))
        await house.worker.do(events=["x" * 100] * 5)
        found = await soon(reading)
        assert cutter.cuts == 3
    assert [event.event for event in found] == ["metadata", *["custom"] * 5, "end"]
    assert (await house.client.list_runs()).total == 1


async def test_patience_ends() -> None:
    async with PerdureClient("http://127.0.0.1:9", patience=0.2, **QUICK) as client:
        with pytest.raises(Unreachable):
            await gathered(client.stream_run("r"))
        with pytest.raises(Unreachable):
            await client.join_run("r")


# --- slow, many, and ended --------------------------------------------------------------------------------


class Dribble:
    """The application itself, so that the test controls the reader's slowness."""

    def __init__(self, app: App, path: str) -> None:
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()
        self.may_take = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        self.task = asyncio.ensure_future(build_application(app)(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            await self.sent.put(message["body"])
            await self.may_take.wait()


async def test_a_slow_reader_holds_up_nobody_and_loses_nothing() -> None:
    async with InMemoryLightningStore() as store, housed(store) as house:
        run = await house.run(on_completion="keep")
        threads = house.visitor.app.services.threads
        assert threads is not None
        slow = Dribble(App(store), f"{API}/runs/{run.run_id}/stream")
        assert (await soon(slow.sent.get())).startswith(long_responses.GREETING)
        work = await house.worker.claim()
        for start in range(0, 6000, 500):
            await house.worker.emit(work.held, *range(start, start + 500))
        await house.worker.end(work)
        # Everything is written, and the reader was sent no more than it read.
        assert slow.sent.empty()
        slow.may_take.set()
        data = b""
        while events.THE_END not in data:
            data += await soon(slow.sent.get())
        ids = [line for line in data.split(b"\n") if line.startswith(b"id: ")]
        assert [int(line.rpartition(b"-")[2]) for line in ids] == list(range(1, 6003))
        await soon(slow.task)


async def test_a_reader_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_responses, "SEND_SECONDS", 0.05)
    async with InMemoryLightningStore() as store, housed(store) as house:
        run = await house.run()
        app = App(store)
        slow = Dribble(app, f"{API}/runs/{run.run_id}/stream")
        await soon(slow.task)
        assert not app.streams


async def test_an_actor_reads_so_many_streams_and_no_more() -> None:
    async with InMemoryLightningStore() as store, housed(store, max_streams=1) as house:
        run = await house.run()
        path = f"{API}/runs/{run.run_id}/stream"
        async with streaming(house.visitor, path):
            answer = await house.visitor.get(path)
            assert (answer.status, answer.body["code"]) == (429, TooManyRequests.code)
            reading = asyncio.ensure_future(gathered(house.client.stream_run(run.run_id)))
        await house.worker.do()
        assert len(await soon(reading)) == 2
        await until(lambda: not house.visitor.app.streams)


async def test_a_stream_ends_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_responses, "HEARTBEAT_SECONDS", 0.02)
    async with InMemoryLightningStore() as store, housed(store, api_key=KEY) as house:
        house.visitor.headers = bearer(KEY)
        run = await house.visitor.app.services.threads.create_run(request())
        made = (
            await house.visitor.post(
                API + "/tokens", json={"name": "t", "scopes": ["read"], "without_admin": True}
            )
        ).body
        path = f"{API}/runs/{run.run_id}/stream"
        async with streaming(house.visitor, path, headers=bearer(made["secret"])) as reader:
            await house.visitor.ask("DELETE", f"{API}/tokens/{made['token_id']}")
            blocks = await reader.rest()
        # The connection ends, and the stream does not.
        assert {"": "that was all"} not in blocks


async def test_a_server_that_stops_ends_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    async with InMemoryLightningStore() as store:
        app = App(store)
        worker = Worker(app.services.run_queue.in_namespace("default"))
        await worker.register()
        run = await app.services.threads.create_run(request(on_disconnect="cancel", on_completion="keep"))
        server = HttpServer(build_application(app))
        async with aiohttp.ClientSession() as session, server:
            url = f"{server.url}{API}/runs/{run.run_id}/stream?cancel_on_disconnect=true"
            async with session.get(url) as response:
                stopping = asyncio.ensure_future(asyncio.to_thread(server.stop))
                data = await soon(response.content.read())
                await stopping
        assert events.THE_END not in data
        assert not app.streams
        # The server disconnected, not the caller.
        assert (await app.services.threads.get_run(run.run_id)).status == "pending"


async def test_many_read_one_run(house: House) -> None:
    run = await house.run()
    readers: list[AsyncIterator[Any]] = [house.client.stream_run(run.run_id) for _ in range(50)]
    reading = asyncio.gather(*map(gathered, readers))
    work = await house.worker.claim()
    for number in range(40):
        await house.worker.emit(work.held, number)
    await house.worker.queue.append(work.held, [told("values", {})])
    await house.worker.end(work)
    for found in await soon(reading):
        assert [event.seq for event in found] == list(range(1, 44))
