"""A server process is killed while runs are streamed, awaited and executed over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.support import soon, until
from tests.server.native.support import AGENT, Worker, gathered, request
from tests.server.otlp_support import ENGINES
from tests.support.python_process import PythonProcess

from perdure.client.native import PerdureClient
from perdure.client.run_queue import RemoteRunQueue
from perdure.streams.model import StreamEvent
from perdure.testing.serving import ServerProcess

PATIENT: dict[str, Any] = {"retry_delays": (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)}
EVENTS = 60


@pytest.fixture(params=ENGINES)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    if request.param == "sqlite":
        database = f"sqlite:///{tmp_path / 'runs.db'}"
    else:
        database = request.getfixturevalue("postgres_url")
    command = [sys.executable, "-m", "perdure.cli", "serve", "--no-worker", "--database", database]
    # No process renews leases here, and a restart may take long.
    environment = {**os.environ, "BG_JOB_HEARTBEAT": "600"}
    with ServerProcess(command, environment=environment, popen=PythonProcess) as started:
        yield started


async def _restart(server: ServerProcess) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def test_streams_and_waits_outlast_a_killed_server(server: ServerProcess) -> None:
    """Three kills between 60 events: each reader gets every event once, and each waiter gets the end."""
    queue = RemoteRunQueue(server.url, **PATIENT)
    worker = Worker(queue)
    await worker.register()
    async with PerdureClient(server.url, **PATIENT) as client:
        await client.create_thread("t")
        run = await client.create_run(request(thread_id="t"))
        seen: list[list[StreamEvent]] = [[] for _ in range(3)]
        readers = [asyncio.ensure_future(_follow(client, run.run_id, each)) for each in seen]
        joining = asyncio.ensure_future(client.join_run(run.run_id))
        work = await worker.claim()
        for number in range(EVENTS):
            if number % 20 == 10:
                await _restart(server)
            await worker.emit(work.held, number)
        ended = await worker.end(work, {"n": EVENTS})
        assert (ended.status, ended.attempt) == ("success", 1)
        await soon(asyncio.gather(*readers))
        end = await soon(joining)
        whole = await gathered(client.stream_run(run.run_id))
        for each in seen:
            assert [(event.id, event.event, event.body) for event in each] == [
                (event.id, event.event, event.body) for event in whole
            ]
        assert [event.seq for event in whole] == list(range(1, EVENTS + 3))
        assert (end.run.status, end.values) == ("success", {"n": EVENTS})
    await queue.close()


async def _follow(client: PerdureClient, run_id: str, seen: list[StreamEvent]) -> None:
    async for burst in client.stream_run(run_id):
        seen += burst


async def test_a_run_that_is_made_and_awaited_outlasts_a_killed_server(server: ServerProcess) -> None:
    queue = RemoteRunQueue(server.url, **PATIENT)
    worker = Worker(queue)
    await worker.register()
    async with PerdureClient(server.url, **PATIENT) as client:
        waiting = asyncio.ensure_future(client.wait(request(thread_id="t", if_not_exists="create")))
        streaming = asyncio.ensure_future(
            gathered(client.stream(request(thread_id="s", if_not_exists="create")))
        )
        works = [await worker.claim(), await worker.claim()]
        await _restart(server)
        for work in works:
            await worker.end(work, {"done": True})
        end = await soon(waiting)
        assert (end.run.status, end.values) == ("success", {"done": True})
        assert [event.event for event in await soon(streaming)] == ["metadata", "end"]
        # The repeated request created no second run.
        assert (await client.list_runs()).total == 2
    await queue.close()


async def test_a_server_that_is_asked_to_stop_hands_its_readers_on(server: ServerProcess) -> None:
    queue = RemoteRunQueue(server.url, **PATIENT)
    worker = Worker(queue)
    await worker.register()
    async with PerdureClient(server.url, **PATIENT) as client:
        run = await client.create_run(request(on_completion="keep"))
        seen: list[StreamEvent] = []
        reading = asyncio.ensure_future(_follow(client, run.run_id, seen))
        work = await worker.claim()
        claiming = asyncio.ensure_future(queue.claim("idle", [AGENT], 1, 30))
        await until(lambda: len(seen) == 1)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        await worker.emit(work.held, 1)
        await worker.end(work)
        await soon(reading)
        assert [event.event for event in seen] == ["metadata", "custom", "end"]
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
    await queue.close()
