"""The jobs of a namespace on each engine, and an executor whose functions a test registers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest_asyncio
from tests.support.kinds import KINDS

from perdure.jobs.executor import JobExecutor
from perdure.jobs.model import JobContext, JobFunction, JobRegistry
from perdure.kernel.config import Settings
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store

PATIENCE = 20.0


class JobWorld:
    """A namespace with a unique job name."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.storage = services.storage
        self.jobs = services.jobs
        self.name = f"job {uuid.uuid4().hex}"
        self.executors: list[JobExecutor] = []
        self.seen: list[tuple[JobContext, Mapping[str, Any]]] = []

    async def note(self, context: JobContext, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Execute a job by recording its call."""
        self.seen.append((context, payload))
        return {"seen": len(self.seen)}

    async def executing(
        self, function: JobFunction | None = None, *, concurrency: int = 4, **limits: Any
    ) -> JobExecutor:
        """Start an executor of this test's job."""
        registry = JobRegistry()
        registry.register(self.name, function or self.note, **{"retry": (0.01, 0.01), **limits})
        executor = JobExecutor(self.storage, registry, KINDS, concurrency=concurrency)
        await executor.start()
        self.executors.append(executor)
        return executor


@pytest_asyncio.fixture
async def world(shared_engine_url: str) -> AsyncIterator[JobWorld]:
    store = open_store(shared_engine_url, namespace=f"test {uuid.uuid4().hex}", watchdog_interval=0.05)
    made = JobWorld(Services(store, Settings()))
    yield made
    for executor in made.executors:
        await executor.stop(0.0)
    await made.services.close()
