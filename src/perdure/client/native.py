"""The client of a perdure server: its services over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from perdure.access.service import Access
from perdure.approvals.service import Approvals
from perdure.assistants.service import Assistants
from perdure.client.session import RETRY_DELAYS, HttpSession
from perdure.client.streaming import ThreadSenders
from perdure.client.tls import ClientTls
from perdure.client.transport import HttpTransport
from perdure.diagnostics.model import Why
from perdure.diagnostics.service import Diagnostics
from perdure.executions.service import Executions
from perdure.graph_requests.graphs import AgentGraphs
from perdure.items.service import Items
from perdure.jobs.service import Jobs
from perdure.memory.service import Memory
from perdure.messaging.service import Messaging
from perdure.outbox.service import Outbox
from perdure.retention.service import Upkeep
from perdure.rollouts.workers import Workers
from perdure.schedules.service import Schedules
from perdure.service.base import remote
from perdure.sessions.service import Sessions
from perdure.streams.model import StreamEvent
from perdure.threads import asking
from perdure.threads.asking import RunOptions
from perdure.threads.bulk import Bulk
from perdure.threads.records import RunEnd
from perdure.threads.service import Threads
from perdure.traces.service import Traces
from perdure.workflows.override_service import WorkflowOverrides
from perdure.workflows.service import Workflows


@remote
class PerdureClient(Threads):
    """Threads and runs behind a server, with its assistants, items, schedules, outbox and diagnostics.

    An error of the server is raised as its own class. A request whose response was lost is retried if that is
    safe; streams and waits tolerate a server that is away for up to `patience` seconds. `token` and
    `namespace` may also be in the URL: `http://namespace:token@host:4747`. With `https`, `tls` holds the
    files of the client; by default the environment names them.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        namespace: str | None = None,
        *,
        patience: float = 60.0,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        request_timeout: float = 30.0,
        tls: ClientTls | None = None,
    ) -> None:
        session = HttpSession(
            url,
            token=token,
            namespace=namespace,
            retry_delays=retry_delays,
            request_timeout=request_timeout,
            tls=tls,
        )
        self.transport = HttpTransport(session, ThreadSenders(patience).by_method())
        self.assistants = Assistants.over(self.transport)
        self.graphs = AgentGraphs.over(self.transport)
        self.items = Items.over(self.transport)
        self.executions = Executions.over(self.transport)
        self.jobs = Jobs.over(self.transport)
        self.schedules = Schedules.over(self.transport)
        self.sessions = Sessions.over(self.transport)
        self.memory = Memory.over(self.transport)
        self.bulk = Bulk.over(self.transport)
        self.workers = Workers.over(self.transport)
        self.traces = Traces.over(self.transport)
        self.outbox = Outbox.over(self.transport)
        self.access = Access.over(self.transport)
        self.upkeep = Upkeep.over(self.transport)
        self.messaging = Messaging.over(self.transport)
        self.workflows = Workflows.over(self.transport)
        self.approvals = Approvals.over(self.transport)
        self.workflow_overrides = WorkflowOverrides.over(self.transport)
        self.diagnostics = Diagnostics.over(self.transport)

    @property
    def url(self) -> str:
        return self.transport.session.base_url

    async def run(self, assistant: str, input: Any = None, **options: Unpack[RunOptions]) -> RunEnd:
        """Run an assistant and wait for its end; other arguments are fields of `RunRequest`."""
        return await asking.run(self, assistant, input, options)

    def stream_events(
        self, assistant: str, input: Any = None, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[StreamEvent, None]:
        """Run an assistant and stream its events, each with its `data`, until its end."""
        return asking.stream_events(self, assistant, input, options)

    async def why(self, id: str) -> Why:
        """Explain why a run, thread, rollout or schedule is waiting, or how it ended."""
        return await self.diagnostics.why(id)

    async def stats(self) -> dict[str, Any]:
        """Show queue depth, workers, connection pools and undelivered webhooks."""
        return await self.diagnostics.stats()

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"
