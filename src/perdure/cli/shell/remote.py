"""The connection of client commands to a server. Each service is loaded at its first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from perdure.cli.shell.output import warn
from perdure.client.one_shot import OneShotSession
from perdure.client.outage import Outage
from perdure.client.session import Answer, HttpSession
from perdure.client.transport import HttpTransport
from perdure.kernel.errors import NotSupported, OutcomeUnknown, PerdureError
from perdure.service.endpoints import KEY, Endpoint

if TYPE_CHECKING:
    from perdure.access.service import Access
    from perdure.approvals.service import Approvals
    from perdure.assistants.service import Assistants
    from perdure.diagnostics.service import Diagnostics
    from perdure.executions.service import Executions
    from perdure.graph_requests.graphs import AgentGraphs
    from perdure.items.service import Items
    from perdure.jobs.records import Job
    from perdure.jobs.service import Jobs
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
    from perdure.service.base import Service
    from perdure.sessions.service import Sessions
    from perdure.threads.bulk import Bulk
    from perdure.threads.service import Threads
    from perdure.traces.service import Traces
    from perdure.workflows.override_service import WorkflowOverrides
    from perdure.workflows.service import Workflows

READY = "/readyz"
INFO = "/info"
JOB_SECONDS = 0.1
"""Poll interval for the end of a job."""
PATIENCE_SECONDS = 600.0
"""How long a stream, a wait or a retried create waits for a server that is away."""
AWAY = "server away, reconnecting"
Document = dict[str, Any]
S = TypeVar("S", bound="Service")


class _Transport(HttpTransport):
    """Loads the senders of streams and waits at the first such call."""

    def send(self, endpoint: Endpoint, arguments: dict[str, Any]) -> Any:
        if endpoint.by_hand and not self.senders:
            from perdure.client.streaming import ThreadSenders

            self.senders = dict(ThreadSenders(PATIENCE_SECONDS, _warn_away).by_method())
        return super().send(endpoint, arguments)

    async def exchange(self, endpoint: Endpoint, arguments: dict[str, Any], **options: Any) -> Answer:
        """Send one request. If its response was lost, repeat it with its idempotency key."""
        if not endpoint.shape.keyed:
            return await super().exchange(endpoint, arguments, **options)
        if arguments.get(KEY) is None:
            arguments = {**arguments, KEY: uuid4().hex}
        outage = Outage(self.session, PATIENCE_SECONDS, _warn_away)
        while True:
            try:
                return await super().exchange(endpoint, arguments, **options)
            except PerdureError as error:
                if not outage.has_begun and not isinstance(error, OutcomeUnknown):
                    raise
                await outage.pause(error)


def _warn_away() -> None:
    warn(AWAY)


class Remote:
    """A connection to a server. Requests are not retried, because a person waits."""

    def __init__(self, url: str, token: str | Callable[[], str | None] | None, namespace: str | None) -> None:
        self._url = url
        self._options: Document = {"token": token, "namespace": namespace, "retry_delays": ()}
        self.session: HttpSession = OneShotSession(url, **self._options)
        self._transport = _Transport(self.session)

    async def close(self) -> None:
        await self.session.close()
        if "store" in vars(self):
            await self.store.close()

    def _over(self, service: type[S]) -> S:
        return service.over(self._transport)

    @cached_property
    def store(self) -> LightningStore:
        from perdure.client.lightning import LightningStoreClient

        class Store(LightningStoreClient):
            session_kind = OneShotSession

        return Store(self._url, **self._options)

    @cached_property
    def threads(self) -> Threads:
        from perdure.threads.service import Threads

        return self._over(Threads)

    @cached_property
    def bulk(self) -> Bulk:
        from perdure.threads.bulk import Bulk

        return self._over(Bulk)

    @cached_property
    def rollouts(self) -> Rollouts:
        from perdure.rollouts.service import Rollouts

        return self._over(Rollouts)

    @cached_property
    def resources(self) -> Resources:
        from perdure.rollouts.resource_service import Resources

        return self._over(Resources)

    @cached_property
    def workers(self) -> Workers:
        from perdure.rollouts.workers import Workers

        return self._over(Workers)

    @cached_property
    def assistants(self) -> Assistants:
        from perdure.assistants.service import Assistants

        return self._over(Assistants)

    @cached_property
    def items(self) -> Items:
        from perdure.items.service import Items

        return self._over(Items)

    @cached_property
    def outbox(self) -> Outbox:
        from perdure.outbox.service import Outbox

        return self._over(Outbox)

    @cached_property
    def upkeep(self) -> Upkeep:
        from perdure.retention.service import Upkeep

        return self._over(Upkeep)

    @cached_property
    def schedules(self) -> Schedules:
        from perdure.schedules.service import Schedules

        return self._over(Schedules)

    @cached_property
    def access(self) -> Access:
        from perdure.access.service import Access

        return self._over(Access)

    @property
    def own_services(self) -> Services:
        """Raise NotSupported, because an import bypasses the server."""
        raise NotSupported(
            "an import writes to the database itself: give it with --database, without its server"
        )

    @cached_property
    def graphs(self) -> AgentGraphs:
        from perdure.graph_requests.graphs import AgentGraphs

        return self._over(AgentGraphs)

    @cached_property
    def traces(self) -> Traces:
        from perdure.traces.service import Traces

        return self._over(Traces)

    @cached_property
    def diagnostics(self) -> Diagnostics:
        from perdure.diagnostics.service import Diagnostics

        return self._over(Diagnostics)

    @cached_property
    def sessions(self) -> Sessions:
        from perdure.sessions.service import Sessions

        return self._over(Sessions)

    @cached_property
    def memory(self) -> Memory:
        from perdure.memory.service import Memory

        return self._over(Memory)

    @cached_property
    def messaging(self) -> Messaging:
        from perdure.messaging.service import Messaging

        return self._over(Messaging)

    @cached_property
    def approvals(self) -> Approvals:
        from perdure.approvals.service import Approvals

        return self._over(Approvals)

    @cached_property
    def workflows(self) -> Workflows:
        from perdure.workflows.service import Workflows

        return self._over(Workflows)

    @cached_property
    def workflow_overrides(self) -> WorkflowOverrides:
        from perdure.workflows.override_service import WorkflowOverrides

        return self._over(WorkflowOverrides)

    @cached_property
    def executions(self) -> Executions:
        from perdure.executions.service import Executions

        return self._over(Executions)

    @cached_property
    def jobs(self) -> Jobs:
        from perdure.jobs.service import Jobs

        return self._over(Jobs)

    async def finish_memory(self) -> None:
        """Do nothing; the server indexes ingested events."""

    async def finish_job(self, job_id: str) -> Job:
        """Wait until the server has finished a job."""
        from perdure.rollouts.model import ENDED

        while True:
            job = await self.jobs.get(job_id)
            if job.status in ENDED:
                return job
            await asyncio.sleep(JOB_SECONDS)

    async def health(self) -> Document:
        return dict((await self.session.request("GET", READY)).json())

    async def grpc_address(self) -> str | None:
        """Return the gRPC address of the server; None if it has none, or if its release is too old."""
        try:
            ports = (await self.session.request("GET", INFO)).json().get("grpc_ports")
        except PerdureError:
            return None
        if not ports:
            return None
        host = str(urlsplit(self.session.base_url).hostname)
        return f"[{host}]:{ports[0]}" if ":" in host else f"{host}:{ports[0]}"
