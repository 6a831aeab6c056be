"""Agents that block an event loop: those that hold it, not those that wait for a core or for each other."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from perdure.worker import isolation
from perdure.worker.isolation import AgentLoops

SECONDS = 60.0
WARNING = "blocks the event loop"


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentLoops]:
    monkeypatch.setattr(isolation, "NEW_SECONDS", 0.0)
    loops = AgentLoops()
    yield loops
    loops.close()


async def look_until_done(loops: AgentLoops, *jobs: isolation.AgentJob) -> None:
    """Check the loops as a worker does, until the jobs have ended."""
    async with asyncio.timeout(SECONDS):
        while not all(job.done.done() for job in jobs):
            loops.look()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("computes", [False, True], ids=["waits", "computes"])
async def test_an_agent_that_holds_the_loop_is_named(
    loops: AgentLoops, caplog: pytest.LogCaptureFixture, computes: bool
) -> None:
    released = threading.Event()

    async def block() -> None:
        while computes and not released.is_set():
            sum(range(1000))
        released.wait(SECONDS)

    async def go_on() -> str:
        return "done"

    job = loops.start(block, "run of blocker")
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(SECONDS):
            while WARNING not in caplog.text:
                loops.look()
                await asyncio.sleep(0.05)
    assert "run of blocker" in caplog.text
    # Other agents continue in another loop.
    assert (await asyncio.wait_for(loops.start(go_on, "run of other").done, SECONDS)).value == "done"
    released.set()
    await asyncio.wait_for(job.done, SECONDS)


async def test_many_short_callbacks_block_nothing(
    loops: AgentLoops, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "BLOCKED_SECONDS", 0.2)

    async def step() -> None:
        for _ in range(4):
            # 30 of these are one turn of the loop, which takes three times the threshold.
            time.sleep(0.02)  # noqa: ASYNC251 - it holds the loop
            await asyncio.sleep(0)

    jobs = [loops.start(step, f"run {number}") for number in range(30)]
    with caplog.at_level(logging.WARNING):
        await look_until_done(loops, *jobs)
    assert WARNING not in caplog.text


if sys.platform == "linux":

    async def test_a_thread_that_waits_for_a_core_blocks_nothing(
        loops: AgentLoops, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The loop's thread has little work and a low priority; other processes keep its core busy."""
        core = min(os.sched_getaffinity(0))
        waited: list[float] = []

        async def compute() -> None:
            thread = threading.get_native_id()
            os.sched_setaffinity(thread, {core})
            os.setpriority(os.PRIO_PROCESS, thread, 10)
            started, used = time.monotonic(), time.thread_time()
            while time.thread_time() - used < 0.1:
                sum(range(1000))
            waited.append(time.monotonic() - started)

        spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
        others = [await asyncio.create_subprocess_exec(sys.executable, "-c", spin) for _ in range(3)]
        try:
            with caplog.at_level(logging.WARNING):
                await look_until_done(loops, loops.start(compute, "run of computing"))
        finally:
            for process in others:
                process.kill()
                await process.wait()
        assert WARNING not in caplog.text
        assert waited[0] > isolation.BLOCKED_SECONDS, "the core had time to spare, so that nothing was tested"


async def test_a_new_loop_is_not_judged(caplog: pytest.LogCaptureFixture) -> None:
    loops = AgentLoops()

    async def load() -> None:
        time.sleep(0.9)  # noqa: ASYNC251 - it holds the loop

    with caplog.at_level(logging.WARNING):
        await look_until_done(loops, loops.start(load, "run of loading"))
    loops.close()
    assert WARNING not in caplog.text
