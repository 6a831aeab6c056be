"""Runs that one process creates and another executes, with and without Redis between them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.kernel.redis_hubs import redis_client
from tests.kernel.support import PATIENCE, soon, until_true

from perdure.embedding.perdure import Perdure
from perdure.testing.redis_server import RedisServer
from perdure.threads.records import RunRequest
from perdure.worker.registry import Agents

NEVER = 600.0
"""Poll interval longer than any test."""

gates: dict[str, threading.Event] = {}


def make_agents() -> Agents:
    agents = Agents()

    @agents.agent("counting")
    async def counting(ctx: Any, input: Any) -> Any:
        await ctx.emit({"number": 1})
        if input is not None:
            await asyncio.to_thread(gates[input].wait, PATIENCE)
        await ctx.emit({"number": 2})
        return {"counted": 2}

    return agents


@pytest.fixture
def gate(redis_prefix: str) -> threading.Event:
    return gates.setdefault(redis_prefix, threading.Event())


@pytest.fixture
async def pair(
    database_url: str, redis_url: str, redis_prefix: str
) -> AsyncIterator[tuple[Perdure, Perdure]]:
    """A caller, and a worker that never polls."""
    options: dict[str, Any] = {"redis_url": redis_url, "redis_key_prefix": redis_prefix}
    options |= {"job_interval": NEVER, "job_heartbeat": NEVER}
    async with (
        Perdure(database_url, **options) as asking,
        Perdure(database_url, agents=make_agents(), jobs_per_worker=1, **options) as working,
    ):
        await until_true(lambda: _has_redis(working))
        yield asking, working


async def _has_redis(perdure: Perdure) -> bool:
    return bool((await perdure.store.health())["redis"] == "ok")


async def test_a_run_starts_by_the_list_and_is_read_by_its_channel(
    pair: tuple[Perdure, Perdure], gate: threading.Event, redis_url: str, redis_prefix: str
) -> None:
    asking, _ = pair
    seen: list[Any] = []
    async with asyncio.timeout(PATIENCE), redis_client(redis_url) as client:
        async for burst in asking.stream_bursts("counting", redis_prefix):
            seen += [(event.event, event.source) for event in burst]
            if seen[-1][0] == "custom" and not gate.is_set():
                assert await client.exists(f"{redis_prefix}run:{seen[-1][1]}:running")
                gate.set()
        assert [event for event, _ in seen if event == "custom"] == ["custom", "custom"]
        assert seen[-1][0] == "end"
        await until_true(lambda: _is_gone(client, f"{redis_prefix}run:{seen[-1][1]}:running"))


async def _is_gone(client: Any, name: str) -> bool:
    return not await client.exists(name)


async def test_a_cancel_reaches_the_worker_by_the_runs_control_channel(
    pair: tuple[Perdure, Perdure], gate: threading.Event, redis_prefix: str
) -> None:
    asking, _ = pair
    run = await asking.threads.create_run(RunRequest(assistant_id="counting", input=redis_prefix))
    async for burst in asking.threads.stream_run(run.run_id):
        if any(event.event == "custom" for event in burst):
            break
    try:
        await soon(asking.threads.cancel_run(run.run_id, wait=True))
    finally:
        gate.set()
    assert (await soon(asking.threads.join_run(run.run_id))).run.status == "interrupted"


async def test_many_runs_reach_a_worker_that_takes_one_at_a_time(pair: tuple[Perdure, Perdure]) -> None:
    asking, _ = pair
    ends = await soon(asyncio.gather(*(asking.run("counting") for _ in range(12))))
    assert {end.run.status for end in ends} == {"success"}


async def test_without_redis_runs_are_found_by_polling(database_url: str) -> None:
    with RedisServer() as server:
        options: dict[str, Any] = {"redis_url": server.url, "job_interval": 0.2}
        async with (
            Perdure(database_url, **options) as asking,
            Perdure(database_url, agents=make_agents(), **options) as working,
        ):
            assert (await soon(asking.run("counting"))).run.status == "success"
            server.kill()
            assert (await soon(asking.run("counting"))).run.status == "success"
            server.start()
            await until_true(lambda: _has_redis(working))
            server.pause()
            assert (await soon(asking.run("counting"))).run.status == "success"
            server.resume()
