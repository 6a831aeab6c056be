"""What a process runs beside its services: started in order, stopped in reverse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from perdure.memory.index import MemoryIndexer
from perdure.outbox.webhooks.sender import WebhookSender
from perdure.runtime.app import App
from perdure.runtime.embedded_worker import EmbeddedWorker, Takeover
from perdure.worker.registry import Agents


class Component(Protocol):
    """Something that runs from `start` to `stop`, in the event loop of its process."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


def components_of(app: App, agents: Agents | None = None, *, webhooks: bool = True) -> list[Component]:
    """Deliveries, jobs, the timer of schedules and a worker for the agents, in the order of starting."""
    services = app.services
    if webhooks:
        sender = WebhookSender(app.settings, policy=app.http.webhook_policy, headers=app.http.webhook_headers)
        services.deliveries.add(sender)
    services.deliveries.add(MemoryIndexer(services.storage))
    components: list[Component] = [
        Takeover(app),
        services.deliveries,
        services.job_executor,
        services.schedule_timer,
    ]
    return [*components, EmbeddedWorker(app, agents)] if agents is not None else components


@asynccontextmanager
async def running(components: Sequence[Component]) -> AsyncIterator[None]:
    """Start each in order; at the end, or when one fails to start, stop the started ones in reverse."""
    async with AsyncExitStack() as stack:
        for component in components:
            await component.start()
            stack.push_async_callback(component.stop)
        yield
