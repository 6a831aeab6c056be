"""The server or database that a client command connects to."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from perdure.access.service import Access
    from perdure.approvals.service import Approvals
    from perdure.assistants.service import Assistants
    from perdure.client.session import HttpSession
    from perdure.diagnostics.service import Diagnostics
    from perdure.executions.service import Executions
    from perdure.graph_requests.graphs import AgentGraphs
    from perdure.items.service import Items
    from perdure.jobs.records import Job
    from perdure.memory.service import Memory
    from perdure.messaging.service import Messaging
    from perdure.outbox.service import Outbox
    from perdure.retention.service import Upkeep
    from perdure.rollouts.contract import LightningStore
    from perdure.rollouts.resource_service import Resources
    from perdure.rollouts.service import Rollouts
    from perdure.rollouts.workers import Workers
    from perdure.runtime.services import Services
    from perdure.schedules.service import Schedules
    from perdure.sessions.service import Sessions
    from perdure.threads.bulk import Bulk
    from perdure.threads.service import Threads
    from perdure.traces.service import Traces
    from perdure.workflows.override_service import WorkflowOverrides
    from perdure.workflows.service import Workflows

DEFAULT_URL = "http://127.0.0.1:4747"


class CommandConnection(Protocol):
    """The operations of a server or a database that client commands use."""

    @property
    def store(self) -> LightningStore: ...
    @property
    def session(self) -> HttpSession | None: ...
    @property
    def threads(self) -> Threads: ...
    @property
    def assistants(self) -> Assistants: ...
    @property
    def items(self) -> Items: ...
    @property
    def outbox(self) -> Outbox: ...
    @property
    def upkeep(self) -> Upkeep: ...
    @property
    def rollouts(self) -> Rollouts: ...
    @property
    def resources(self) -> Resources: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def bulk(self) -> Bulk: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def traces(self) -> Traces: ...
    @property
    def diagnostics(self) -> Diagnostics: ...
    @property
    def sessions(self) -> Sessions: ...
    @property
    def memory(self) -> Memory: ...
    async def finish_memory(self) -> None: ...
    async def finish_job(self, job_id: str) -> Job: ...
    @property
    def messaging(self) -> Messaging: ...
    @property
    def approvals(self) -> Approvals: ...
    @property
    def workflows(self) -> Workflows: ...
    @property
    def executions(self) -> Executions: ...
    @property
    def workflow_overrides(self) -> WorkflowOverrides: ...
    @property
    def access(self) -> Access: ...
    @property
    def graphs(self) -> AgentGraphs: ...
    @property
    def own_services(self) -> Services: ...
    async def health(self) -> dict[str, Any]: ...
    async def grpc_address(self) -> str | None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True)
class CommandTarget:
    """The server or database of the command line."""

    url: str | None = None
    token: str | None = None
    namespace: str | None = None
    database: str | None = None

    @property
    def is_given(self) -> bool:
        """Whether the command line or the environment names a server or a database."""
        return self.url is not None or self.database is not None

    @asynccontextmanager
    async def open(self, *, create: bool = False) -> AsyncIterator[CommandConnection]:
        """Connect; `create` creates a missing database file."""
        connection = self._direct(create) if self.database is not None else self._remote()
        try:
            yield connection
        finally:
            await connection.close()

    def _remote(self) -> CommandConnection:
        from perdure.cli.shell.remote import Remote
        from perdure.runtime.private_files import read_local_secret

        url = self.url or DEFAULT_URL
        has_token = self.token or urlsplit(url).password
        return Remote(url, self.token if has_token else lambda: read_local_secret(url), self.namespace)

    def _direct(self, create: bool) -> CommandConnection:
        from perdure.cli.shell.direct import Direct

        assert self.database is not None
        return Direct(self.database, self.namespace, actor(), create=create)


def actor() -> str:
    """Return the user's name for the audit log."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        return "cli"
