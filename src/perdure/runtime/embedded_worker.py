"""A worker in the process of a server, or by itself on a database."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.runtime.app import App
from perdure.runtime.services import get_workspaces_folder
from perdure.worker.options import WorkerOptions
from perdure.worker.registry import Agents
from perdure.worker.worker import RunWorker


def build_worker(app: App, agents: Agents, **options: Any) -> RunWorker:
    """Build a worker on the database of an app, with the app's settings; options have precedence."""
    app.agents = agents
    options.setdefault("workspaces", get_workspaces_folder(app.settings, app.services.storage))
    return RunWorker(
        app.services.run_queue.in_namespace(app.namespace).in_this_process(),
        agents,
        WorkerOptions.from_settings(app.settings, **options),
        store=app.store,
        rollouts=app.services.rollouts,
        requests=app.services.graph_requests.in_namespace(app.namespace),
        memory=app.services.memory.in_namespace(app.namespace),
        metrics=app.metrics,
        queue_stats=app.services.threads.queue_stats,
    )


class Takeover:
    """Ends the leases of workers of the previous process, before other components start."""

    def __init__(self, app: App) -> None:
        self._queue = app.services.run_queue

    async def start(self) -> None:
        await self._queue.take_over()

    async def stop(self) -> None:
        """Do nothing; nothing runs."""


class EmbeddedWorker:
    """Executes runs in a server's process while the server runs."""

    def __init__(self, app: App, agents: Agents) -> None:
        self._app = app
        self._worker = build_worker(app, agents)
        self._draining: dict[RunWorker, asyncio.Task[None]] = {}

    @property
    def agents(self) -> Agents:
        """The agents whose runs it claims."""
        agents = self._app.agents
        assert agents is not None
        return agents

    @property
    def draining(self) -> int:
        """Number of runs that still execute replaced agents."""
        return sum(worker.active for worker in self._draining)

    async def start(self) -> None:
        await self._worker.start()

    async def replace(self, agents: Agents) -> None:
        """Execute new runs with other agents. Current runs finish with their own."""
        gone = [spec for spec in self.agents.specs if spec.name not in agents]
        worker, self._worker = self._worker, build_worker(self._app, agents)
        await self._worker.start()
        await worker.stop_claiming()
        self._draining[worker] = asyncio.create_task(self._drain(worker))
        await self._app.services.assistants.in_namespace(self._app.namespace).unregister(gone)

    async def _drain(self, worker: RunWorker) -> None:
        await worker.drain()
        await worker.stop()
        del self._draining[worker]

    async def stop_claiming(self) -> None:
        await self._worker.stop_claiming()

    async def stop(self) -> None:
        for task in self._draining.values():
            task.cancel()
        await asyncio.gather(*self._draining.values(), return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in (self._worker, *self._draining)))
