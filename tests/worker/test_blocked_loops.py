"""A loop of agents is blocked when one task holds it, not when many short ones do."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.worker.isolation import AgentLoops

PATIENCE = 60.0
WARNING = "an agent blocks the event loop"


@pytest.fixture
def loops() -> Iterator[AgentLoops]:
    loops = AgentLoops()
    yield loops
    loops.close()


async def look_until(loops: AgentLoops, jobs: list[asyncio.Future[Any]]) -> None:
    """Look as a worker does, until the jobs have ended."""
    async with asyncio.timeout(PATIENCE):
        while not all(job.done() for job in jobs):
            loops.look()
            await asyncio.wait(jobs, timeout=0.1)


async def test_a_task_that_holds_its_loop_is_named(
    loops: AgentLoops, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    async def holds() -> None:
        released.wait(PATIENCE)

    job = loops.start(holds, "run 1")
    async with asyncio.timeout(PATIENCE):
        while WARNING not in caplog.text:
            loops.look()
            await asyncio.sleep(0.1)
    assert "run 1" in caplog.text
    other = loops.start(lambda: asyncio.sleep(0), "run 2")
    await look_until(loops, [other.done])
    assert not job.done.done()
    released.set()
    await look_until(loops, [job.done])


async def test_many_short_tasks_are_no_block(loops: AgentLoops, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def first() -> None:
        loop.call_soon_threadsafe(begun.set)

    async def short() -> None:
        ends = time.monotonic() + 0.02
        while time.monotonic() < ends:
            pass

    async def many() -> None:
        # Every turn of the loop takes 4 seconds, in which no ping is answered.
        await asyncio.gather(*(short() for _ in range(200)))

    await look_until(loops, [loops.start(first, "first").done])
    await begun.wait()
    await look_until(loops, [loops.start(many, "many").done])
    assert WARNING not in caplog.text
