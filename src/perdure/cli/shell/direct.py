"""The connection of client commands to a database that they open themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure.graph_requests.graphs import AgentGraphs
from perdure.jobs.records import Job
from perdure.kernel.config import load_settings, mask_url
from perdure.kernel.errors import NotFound, NotSupported
from perdure.memory.wiring import MemoryWork
from perdure.rollouts.contract import LightningStore
from perdure.runtime.services import Services
from perdure.runtime.stores import sqlite_file
from perdure.service.callers import Caller

Document = dict[str, Any]


class Direct:
    """A connection to a database that this process opens."""

    session = None

    def __init__(self, database: str, namespace: str | None, actor: str, *, create: bool) -> None:
        file = sqlite_file(database)
        if file is not None and not create and not Path(file).exists():
            raise NotFound(f"database {file} not found")
        settings = load_settings(
            {"database_url": database, "namespace": namespace, "watchdog_interval": None}
        )
        self._services = Services.open(settings).acting_as(Caller.trusted(actor, settings.namespace))
        self._url = mask_url(database)
        self._namespace = settings.namespace
        self._acting = self._services.store
        self.store: LightningStore = self._acting
        self.rollouts = self._services.rollouts
        self.resources = self._services.resources
        self.workers = self._services.workers
        self.threads = self._services.threads
        self.bulk = self._services.bulk
        self.assistants = self._services.assistants
        self.items = self._services.items
        self.executions = self._services.executions
        self.outbox = self._services.outbox
        self.upkeep = self._services.upkeep
        self.schedules = self._services.schedules
        self.access = self._services.access
        self.traces = self._services.traces
        self.diagnostics = self._services.diagnostics
        self.sessions = self._services.sessions
        self.memory = self._services.memory
        self._settings = settings
        self.messaging = self._services.messaging

        self.approvals = self._services.approvals
        self.workflows = self._services.workflows
        self.workflow_overrides = self._services.workflow_overrides

    @property
    def own_services(self) -> Services:
        """The services of the database, without a server."""
        return self._services

    @property
    def graphs(self) -> AgentGraphs:
        """Raise NotSupported, because only a server asks workers for their graphs."""
        raise NotSupported("graphs are read by a server, which asks its workers: use --url")

    async def finish_memory(self) -> None:
        """Index ingested events, because no server does."""
        services = self._services
        work = MemoryWork(services.storage, self._settings, services.memory.vectors)
        await work.indexer.index(await services.memory.ns("write"))

    async def finish_job(self, job_id: str) -> Job:
        """Execute a memory job in this process."""
        services = self._services
        work = MemoryWork(services.storage, self._settings, services.memory.vectors)
        work.jobs.register(services.job_registry)
        await services.job_executor.start()
        try:
            return await services.jobs.join(job_id)
        finally:
            await services.job_executor.stop()

    async def close(self) -> None:
        await self._services.close()

    async def health(self) -> Document:
        return {"database": self._url, **await self._acting.health()}

    async def grpc_address(self) -> str | None:
        """Return None; a database has no gRPC address."""
        return None
