"""Background components of a process: started in order, stopped by phases; and a worker as one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from perdure.approvals.notices import ApprovalNotices
from perdure.jobs.model import JobFunction
from perdure.kernel.errors import InvalidInput
from perdure.kernel.lifecycle import Component, InPhase, Step, StopPhase, get_component_name, get_steps
from perdure.memory.run_feed import run_feed, workflow_feed
from perdure.memory.session_feed import SessionFeed
from perdure.memory.wiring import MemoryWork
from perdure.outbox.webhooks.sender import WebhookSender
from perdure.retention.service import RETENTION_JOB, SCHEDULE
from perdure.runtime.app import App
from perdure.runtime.backups import BACKUP_JOB, BACKUP_SECONDS, ScheduledBackup
from perdure.runtime.services import Services, get_public_url, get_workspaces_folder
from perdure.schedules.conditions import Predicate
from perdure.worker.options import WorkerOptions
from perdure.worker.registry import Agents
from perdure.worker.worker import RunWorker
from perdure.workflows.definition_files import KnownAssistants

# --- workers ----------------------------------------------------------------------------------------------


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


# --- components -------------------------------------------------------------------------------------------


__all__ = ["Component", "build_components", "running", "stop_in_phases"]

CANCEL_SECONDS = 1.0
"""Maximum seconds for the cancellation of a service that stopped too slowly."""


def build_components(app: App, agents: Agents | None = None, *, files: bool = True) -> list[Component]:
    """Build deliveries, jobs, timers and a worker for the agents, in order of their start.

    With `files`, workflow and cron files are read before anything fires.
    """
    services = app.services
    sender = WebhookSender(app.settings, policy=app.http.webhook_policy, headers=app.http.webhook_headers)
    notices = ApprovalNotices(
        services.storage,
        sender,
        url=app.settings.approval_webhook_url,
        public_url=get_public_url(app.settings),
    )
    app.reloads.add("webhook secret", sender.reload, settings=["webhook_secret"])
    app.reloads.add("price table", services.reload_prices, settings=["price_file"])
    # A program may send webhooks itself.
    existing = {consumer.name for consumer in services.deliveries.consumers}
    services.deliveries.add(*(consumer for consumer in (sender, notices) if consumer.name not in existing))
    memory = MemoryWork(services.storage, app.settings, services.memory.vectors)
    memory.add_to(services.deliveries, services.job_registry, services.scheduled_jobs)
    services.job_registry.register(RETENTION_JOB, services.upkeep.sweep, timeout=3600.0)
    services.scheduled_jobs.add(RETENTION_JOB, SCHEDULE, jitter=300.0)
    if app.settings.backup_schedule is not None:
        app.backup = ScheduledBackup(services.storage, app.settings)
        services.job_registry.register(BACKUP_JOB, app.backup.run, timeout=BACKUP_SECONDS)
        services.scheduled_jobs.add(BACKUP_JOB, app.settings.backup_schedule)
    feeds: list[Component] = []
    if app.settings.memory_feed:
        ends = [
            run_feed(services.threads, services.memory),
            workflow_feed(services.workflows, services.memory),
        ]
        services.deliveries.add(*ends)
        feeds = [*ends, SessionFeed(services.sessions, services.threads, services.memory)]
    read: list[Component] = []
    if files:
        read = [services.definition_files]
        services.definition_files.check_assistants(KnownAssistants(services.storage, agents or ()))
        names = ["workflow_dir", "cron_dir"]
        app.reloads.add("workflow and cron files", services.definition_files.reload, settings=names)
    components: list[Component] = [
        Takeover(app),
        *feeds,
        InPhase(StopPhase.SUPPORT, services.deliveries),
        services.job_executor,
        services.scheduled_jobs,
        *read,
        InPhase(StopPhase.INTAKE, services.schedule_timer),
        InPhase(StopPhase.INTAKE, services.workflow_timer),
    ]
    return [*components, EmbeddedWorker(app, agents)] if agents is not None else components


def add_handlers(
    services: Services, handlers: Mapping[str, JobFunction], conditions: Mapping[str, Predicate]
) -> None:
    """Register a program's functions and predicates for cron files and schedules, before the start."""
    for name, handler in handlers.items():
        if name in services.job_registry:
            raise InvalidInput(f"handler {name!r}: the server has a job of that name; choose another")
        services.job_registry.register(name, handler)
    for name, predicate in conditions.items():
        services.conditions.register(name, predicate)


@asynccontextmanager
async def running(components: Sequence[Component]) -> AsyncIterator[None]:
    """Start components in order. At the end, or if one fails, stop the started ones by phases."""
    started: list[Component] = []
    try:
        for component in components:
            started.append(component)
            await component.start()
        yield
    finally:
        failures = await stop_in_phases(started)
        if failures:
            raise failures[0][1]


async def stop_in_phases(
    components: Sequence[Component], seconds_left: Callable[[StopPhase], float] | None = None
) -> list[tuple[str, Exception]]:
    """Stop components phase by phase, those of a phase concurrently. Return failures by component.

    `seconds_left` returns the remaining time of a phase; steps that take longer are cancelled.
    """
    steps = [(get_component_name(component), get_steps(component)) for component in reversed(components)]
    failures: list[tuple[str, Exception]] = []
    for phase in StopPhase:
        named = [(name, by_phase[phase]) for name, by_phase in steps if phase in by_phase]
        if named:
            left = None if seconds_left is None else max(seconds_left(phase), 0.0)
            failures += await _stop_together(named, left)
    return failures


async def _stop_together(
    steps: Sequence[tuple[str, Step]], seconds: float | None
) -> list[tuple[str, Exception]]:
    tasks = {asyncio.ensure_future(step()): name for name, step in steps}
    _, late = await asyncio.wait(tasks, timeout=seconds)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=CANCEL_SECONDS)
    failures: list[tuple[str, Exception]] = [
        (tasks[task], TimeoutError(f"it took longer than {seconds or 0:.1f} s")) for task in late
    ]
    for task in tasks.keys() - late:
        error = task.exception()
        if isinstance(error, Exception):
            failures.append((tasks[task], error))
    return failures
