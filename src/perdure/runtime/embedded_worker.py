"""A worker beside something else: in a server's process, or alone on a database."""

from __future__ import annotations

from typing import Any

from perdure.runtime.app import App
from perdure.runtime.services import workspaces_of
from perdure.worker.options import WorkerOptions
from perdure.worker.registry import Agents
from perdure.worker.worker import Worker


def worker_of(app: App, agents: Agents, **options: Any) -> Worker:
    """A worker on the database of an app, with the app's settings; options have precedence."""
    app.agents = agents
    options.setdefault("workspaces", workspaces_of(app.settings, app.services.storage))
    return Worker(
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
    """Before anything else, ends the leases of workers that were in the process before this one."""

    def __init__(self, app: App) -> None:
        self._queue = app.services.run_queue

    async def start(self) -> None:
        await self._queue.take_over()

    async def stop(self) -> None:
        """Nothing runs."""


class EmbeddedWorker:
    """Executes runs in a server's process, from its start to its stop."""

    def __init__(self, app: App, agents: Agents) -> None:
        self.agents = agents
        self._worker = worker_of(app, agents)

    async def start(self) -> None:
        await self._worker.start()

    async def stop_claiming(self) -> None:
        await self._worker.stop_claiming()

    async def stop(self) -> None:
        await self._worker.stop()
