"""Two workers with different agents on PostgreSQL are restarted by turns under runs; none is lost."""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

from tests.chaos.scenario import Run
from tests.support.python_process import PythonProcess

from perdure.agents.records import AgentSpec
from perdure.embedding.perdure import Perdure
from perdure.runs.queue import RunQueue
from perdure.testing.servers import PostgresServer

AGENTS = ("alpha", "beta")
WORKER = """
from perdure import Agents

agents = Agents()


@agents.agent("{name}")
async def work(ctx, input):
    import asyncio

    await ctx.step("first", lambda: input)
    await asyncio.sleep(0.05)
    return {{"agent": "{name}", "number": input}}
"""
SECONDS = 300.0
"""How long all of it may take."""
BETWEEN = 0.5
"""Longest pause between two restarts, in seconds."""


def restart_workers_on_postgres(run: Run) -> None:
    with PostgresServer() as server:
        restart_workers(run, server.create_database("rolling"))


def restart_workers(run: Run, database: str) -> None:
    """Let `run.size` runs of two agents be executed while their workers are restarted by turns."""
    asyncio.run(_Restarts(run, database).perform())


class _Restarts:
    def __init__(self, run: Run, database: str) -> None:
        self._run = run
        self._database = database
        self._random = random.Random(run.seed)
        self._started = 0
        self._workers: dict[str, PythonProcess] = {}

    async def perform(self) -> None:
        for name in AGENTS:
            (self._run.folder / f"{name}.py").write_text(WORKER.format(name=name))
        try:
            async with asyncio.timeout(SECONDS), Perdure(self._database) as perdure:
                queue = RunQueue.beside(perdure.threads)
                await queue.register("nobody", [AgentSpec(name=name) for name in AGENTS])
                await queue.deregister("nobody")
                await self._restart_under_runs(perdure)
        except TimeoutError:
            self._run.found("at the end", [f"only {self._run.done} of {self._run.size} runs ended in time"])
        finally:
            for worker in self._workers.values():
                worker.kill()
                worker.wait()

    async def _restart_under_runs(self, perdure: Perdure) -> None:
        numbers = range(self._run.size)
        ending = asyncio.gather(*(self._follow(perdure, number) for number in numbers))
        for name in AGENTS:
            await self._start(perdure, name)
        while not ending.done():
            await asyncio.sleep(self._random.uniform(0, BETWEEN))
            await self._restart(perdure, self._random.choice(AGENTS))
        await ending

    async def _follow(self, perdure: Perdure, number: int) -> None:
        agent = AGENTS[number % len(AGENTS)]
        # Spread, so that there are runs in every state at each restart.
        await asyncio.sleep(self._random.uniform(0, self._run.size / 40))
        end = await perdure.run(agent, number)
        wanted = {"agent": agent, "number": number}
        if (end.run.status, end.values) != ("success", wanted):
            self._run.found(f"run {number}", [f"{end.run.status} {end.run.error} with {end.values}"])
        self._run.advance(f"{self._run.facts['restarts']} restarts")

    async def _start(self, perdure: Perdure, name: str) -> None:
        self._started += 1
        worker_id = f"{name}-{self._started}"
        command = (sys.executable, "-m", "perdure.cli", "worker", "--name", worker_id)
        place = Path(self._run.folder / f"{name}.py")
        environment = {**os.environ, "N_JOBS_PER_WORKER": "4", "SHUTDOWN_GRACE_PERIOD_SECS": "0.1"}
        with (self._run.folder / f"{name}.log").open("ab") as log:
            self._workers[name] = PythonProcess(
                (*command, "--database", self._database, "--agents", f"{place}:agents"),
                env=environment,
                stdout=log,
                stderr=log,
            )
        # It heeds signals by the time that it is known.
        while await perdure.services.workers.find(worker_id) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _restart(self, perdure: Perdure, name: str) -> None:
        """Stop a worker as a deployment does, and start it again a while later."""
        worker = self._workers[name]
        worker.send_signal(signal.SIGTERM)
        await asyncio.to_thread(worker.wait)
        if worker.returncode != 0:
            self._run.found(f"worker {name}", [f"ended with {worker.returncode}"])
        await asyncio.sleep(self._random.uniform(0, BETWEEN))
        await self._start(perdure, name)
        self._run.facts["restarts"] += 1
