"""The server or database that a client command connects to, and hints from its change feed."""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from perdure.kernel.errors import MethodNotAllowed, NotFound, NotSupported, PerdureError, UnknownRoute

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


# --- hints ------------------------------------------------------------------------------------------------


CHANGES = "/api/v1/changes"
POLL_SECONDS = 1.0
LONGEST_POLL = 10.0
SHORTEST_POLL = 0.1
DIRECT_SECONDS = 0.25
"""Poll interval for a database that this process has opened, because it has no feed."""


class Hints:
    """Wakes the watcher when the server reports a change, and at intervals in case a report is lost."""

    def __init__(self, kinds: Collection[str], object_id: str | None = None) -> None:
        self._kinds = kinds
        self._id = object_id
        self._changed = asyncio.Event()
        self._seconds = POLL_SECONDS

    async def wait(self) -> None:
        """Wait for a hint or the poll interval; then wait shortly, so that several hints are joined."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), self._seconds)
        await asyncio.sleep(SHORTEST_POLL)
        self._changed.clear()

    async def listen(self, connection: CommandConnection) -> None:
        """Read the change feed, if the server has one."""
        if connection.session is None:
            self._seconds = DIRECT_SECONDS
            return
        while True:
            try:
                async for line in connection.session.lines(CHANGES):
                    if self._seconds != LONGEST_POLL:
                        # Changes before the start of the feed are not in it.
                        self._changed.set()
                    self._seconds = LONGEST_POLL
                    self._read_line(line)
            except (NotFound, UnknownRoute, MethodNotAllowed, NotSupported):
                return
            except PerdureError:
                # The command's own read fails in the same way, and reports the error.
                pass
            self._seconds = POLL_SECONDS
            await asyncio.sleep(POLL_SECONDS)

    def _read_line(self, line: bytes) -> None:
        if line.startswith(b"event: resync"):
            self._changed.set()
        if not line.startswith(b"data:"):
            return
        try:
            change = json.loads(line[5:])
            kind, object_id = change.get("kind"), change.get("id")
        except (ValueError, AttributeError):
            return
        if kind in self._kinds and self._id in (None, object_id):
            self._changed.set()


@asynccontextmanager
async def hints(
    connection: CommandConnection, kinds: Collection[str], object_id: str | None = None
) -> AsyncIterator[Hints]:
    """Yield hints from the server: about all objects of some kinds, or about one object."""
    hints_ = Hints(kinds, object_id)
    listening = asyncio.ensure_future(hints_.listen(connection))
    try:
        yield hints_
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
