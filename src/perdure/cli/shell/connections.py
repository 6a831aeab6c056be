"""The two connections of client commands: to a server over HTTP, and to a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from yarl import URL

from perdure.access.model import Caller, Scope
from perdure.access.service import Access
from perdure.approvals.service import Approvals
from perdure.assistants.service import Assistants
from perdure.client.lightning import LightningStoreClient
from perdure.client.native import PerdureClient
from perdure.client.session import HttpSession
from perdure.client.transport import HttpTransport
from perdure.diagnostics.service import Diagnostics
from perdure.executions.service import Executions
from perdure.items.service import Items
from perdure.jobs.records import Job
from perdure.kernel.config import load_settings, mask_url
from perdure.kernel.errors import NotFound, PerdureError
from perdure.memory.service import Memory
from perdure.messaging.service import Messaging
from perdure.outbox.service import Outbox
from perdure.retention.service import Upkeep
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.model import ENDED
from perdure.rollouts.resource_service import Resources
from perdure.rollouts.service import Rollouts
from perdure.rollouts.traces.service import Traces
from perdure.rollouts.workers import Workers
from perdure.runtime.memory_work import MemoryWork
from perdure.runtime.services import Services
from perdure.runtime.stores import sqlite_file
from perdure.schedules.service import Schedules
from perdure.sessions.service import Sessions
from perdure.workflows.override_service import WorkflowOverrides
from perdure.workflows.service import Workflows

READY = "/readyz"
INFO = "/info"
JOB_SECONDS = 0.1
"""How often the server is asked whether a job has ended."""
PATIENCE_SECONDS = 10.0
"""How long a stream or a wait reconnects to a server that does not answer."""
Document = dict[str, Any]


class Remote:
    """A connection to a server. Requests are not retried, since a person is waiting."""

    def __init__(self, url: str, token: str | Callable[[], str | None] | None, namespace: str | None) -> None:
        options: Document = {"token": token, "namespace": namespace, "retry_delays": ()}
        self.store: LightningStore = LightningStoreClient(url, **options)
        self.session: HttpSession = HttpSession(url, **options)
        self.rollouts = Rollouts.over(HttpTransport(self.session))
        self.resources = Resources.over(HttpTransport(self.session))
        self.workers = Workers.over(HttpTransport(self.session))
        self.threads = PerdureClient(url, **options, patience=PATIENCE_SECONDS)

    async def close(self) -> None:
        await self.store.close()
        await self.session.close()
        await self.threads.close()

    @property
    def assistants(self) -> Assistants:
        return self.threads.assistants

    @property
    def items(self) -> Items:
        return self.threads.items

    @property
    def outbox(self) -> Outbox:
        return self.threads.outbox

    @property
    def upkeep(self) -> Upkeep:
        return self.threads.upkeep

    @property
    def schedules(self) -> Schedules:
        return self.threads.schedules

    @property
    def access(self) -> Access:
        return self.threads.access

    @property
    def traces(self) -> Traces:
        return self.threads.traces

    @property
    def diagnostics(self) -> Diagnostics:
        return self.threads.diagnostics

    @property
    def sessions(self) -> Sessions:
        return self.threads.sessions

    @property
    def memory(self) -> Memory:
        return self.threads.memory

    async def finish_memory(self) -> None:
        """The server indexes what was ingested."""

    async def finish_job(self, job_id: str) -> Job:
        """Wait until the server has done a job."""
        while True:
            job = await self.threads.jobs.get(job_id)
            if job.status in ENDED:
                return job
            await asyncio.sleep(JOB_SECONDS)

    @property
    def messaging(self) -> Messaging:
        return self.threads.messaging

    @property
    def approvals(self) -> Approvals:
        return self.threads.approvals

    @property
    def workflows(self) -> Workflows:
        return self.threads.workflows

    @property
    def executions(self) -> Executions:
        return self.threads.executions

    @property
    def workflow_overrides(self) -> WorkflowOverrides:
        return self.threads.workflow_overrides

    async def create_token(
        self,
        name: str,
        scopes: Sequence[str],
        namespaces: Sequence[str] | None,
        expires_in: float | None,
        without_admin: bool,
    ) -> Document:
        created = await self.access.create_token(
            name,
            scopes=cast("list[Scope]", list(scopes)),
            namespaces=None if namespaces is None else list(namespaces),
            expires_in=expires_in,
            without_admin=without_admin,
        )
        return dict(msgspec.to_builtins(created))

    async def list_tokens(self) -> list[Document]:
        return [msgspec.to_builtins(token) for token in await self.access.list_tokens()]

    async def revoke_token(self, token_id: str) -> Document:
        return dict(msgspec.to_builtins(await self.access.revoke_token(token_id)))

    async def health(self) -> Document:
        return dict((await self.session.request("GET", READY)).json())

    async def grpc_address(self) -> str | None:
        """Where the server is reached over gRPC; None if it is not, or is of an earlier release."""
        try:
            ports = (await self.session.request("GET", INFO)).json().get("grpc_ports")
        except PerdureError:
            return None
        if not ports:
            return None
        host = str(URL(self.session.base_url).host)
        return f"[{host}]:{ports[0]}" if ":" in host else f"{host}:{ports[0]}"


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
        self.assistants = self._services.assistants
        self.items = self._services.items
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
        self.executions = self._services.executions
        self.workflow_overrides = self._services.workflow_overrides

    async def finish_memory(self) -> None:
        """Index what was ingested, since no server does."""
        services = self._services
        work = MemoryWork(services.storage, self._settings, services.memory.vectors)
        await work.indexer.index(await services.memory.ns("write"))

    async def finish_job(self, job_id: str) -> Job:
        """Do a job of memory in this process."""
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

    async def create_token(
        self,
        name: str,
        scopes: Sequence[str],
        namespaces: Sequence[str] | None,
        expires_in: float | None,
        without_admin: bool,
    ) -> Document:
        created = await self.access.create_token(
            name,
            scopes=cast("list[Scope]", list(scopes)),
            namespaces=None if namespaces is None else list(namespaces),
            expires_in=expires_in,
            without_admin=without_admin,
        )
        return dict(msgspec.to_builtins(created))

    async def list_tokens(self) -> list[Document]:
        return [msgspec.to_builtins(token) for token in await self.access.list_tokens()]

    async def revoke_token(self, token_id: str) -> Document:
        return dict(msgspec.to_builtins(await self.access.revoke_token(token_id)))

    async def health(self) -> Document:
        return {"database": self._url, **await self._acting.health()}

    async def grpc_address(self) -> str | None:
        """A database has none."""
        return None
