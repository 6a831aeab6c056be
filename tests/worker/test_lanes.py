"""Default number of concurrent runs of a worker: async agents and other agents have separate slots."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import Any

import pytest
from tests.kernel.support import until

from perdure import Agents, Perdure, RunRequest
from perdure.agents.commands import Command
from perdure.worker.options import ASYNC_RUNS

CORES = os.cpu_count() or 1
RESULT = """print('{"type": "result", "values": 1}')"""
MORE = 3
"""Number of runs of each kind that wait for a slot."""


class Executing:
    """Runs of an agent that are being executed; they end when `over` is set."""

    def __init__(self) -> None:
        self.count = 0
        self.most = 0
        self.over = threading.Event()
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self.count += 1
            self.most = max(self.most, self.count)

    def leave(self) -> None:
        with self._lock:
            self.count -= 1


def make_agents(waiting: Executing, blocking: Executing) -> Agents:
    agents = Agents()

    @agents.agent("waits")
    async def waits(ctx: Any, input: Any) -> None:
        waiting.enter()
        await until(waiting.over.is_set)
        waiting.leave()

    @agents.agent("blocks")
    def blocks(ctx: Any, input: Any) -> None:
        blocking.enter()
        blocking.over.wait(60)
        blocking.leave()

    agents.register("command", Command([sys.executable, "-c", RESULT]))
    return agents


async def _start(perdure: Perdure, agent: str, count: int) -> list[str]:
    runs = [await perdure.threads.create_run(_request(agent)) for _ in range(count)]
    return [run.run_id for run in runs]


def _request(agent: str) -> Any:
    return RunRequest(assistant_id=agent)


async def test_async_agents_have_ten_slots_and_others_one_for_each_core(engine_url: str) -> None:
    waiting, blocking = Executing(), Executing()
    async with Perdure(engine_url, agents=make_agents(waiting, blocking), trace_sample=0.0) as perdure:
        blocked = await _start(perdure, "blocks", CORES + MORE)
        await until(lambda: blocking.count == CORES)
        waits = await _start(perdure, "waits", ASYNC_RUNS + MORE)
        await until(lambda: waiting.count == ASYNC_RUNS)
        live = await perdure.services.diagnostics.live_workers()
        assert (live.max, live.active) == (ASYNC_RUNS + CORES, ASYNC_RUNS + CORES)
        command = await perdure.threads.create_run(_request("command"))
        assert (await perdure.threads.get_run(command.run_id)).status == "pending"
        blocking.over.set()
        waiting.over.set()
        ends = [await perdure.threads.join_run(id, 60) for id in (*blocked, *waits, command.run_id)]
    assert [end.run.status for end in ends] == ["success"] * len(ends)
    assert (waiting.most, blocking.most) == (ASYNC_RUNS, CORES)


@pytest.mark.parametrize("slots", [1, 4])
async def test_the_setting_bounds_the_sum(engine_url: str, slots: int) -> None:
    waiting, blocking = Executing(), Executing()
    agents = make_agents(waiting, blocking)
    async with Perdure(engine_url, agents=agents, trace_sample=0.0, jobs_per_worker=slots) as perdure:
        runs: list[str] = []
        for _ in range(slots + MORE):
            runs += await _start(perdure, "waits", 1)
            runs += await _start(perdure, "blocks", 1)
        await until(lambda: waiting.count + blocking.count == slots)
        live = await perdure.services.diagnostics.live_workers()
        assert (live.max, live.active) == (slots, slots)
        waiting.over.set()
        blocking.over.set()
        ends = await asyncio.gather(*(perdure.threads.join_run(id, 60) for id in runs))
    assert [end.run.status for end in ends] == ["success"] * len(ends)
    assert waiting.most + blocking.most <= 2 * slots
