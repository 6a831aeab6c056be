"""The requests of a namespace on each engine, with an agent that a worker has registered."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from perdure.agents.records import AgentSpec
from perdure.checkpoints.records import GraphChanges, GraphPut, GraphState, GraphSteps
from perdure.graph_requests.records import GraphAssignment, GraphCall, UpdateState
from perdure.kernel.config import Settings
from perdure.kernel.ids import RandomIds
from perdure.kernel.ids import uuid as new_uuid
from perdure.runtime.services import Services
from perdure.runtime.stores import open_store
from perdure.service.callers import ALL_SCOPES, Caller

AGENT, OTHER = "thinker", "painter"
PATIENCE = 20.0


class World:
    """A namespace with a caller, and a worker that answers."""

    def __init__(self, services: Services, namespace: str) -> None:
        self.services = services
        self.namespace = namespace
        self.caller = services.acting_as(Caller("ann", ALL_SCOPES, namespace, None))
        self.worker = services.acting_as(Caller("worker", ALL_SCOPES, namespace, None))
        self.storage = services.storage

    async def begin(self) -> World:
        specs = [AgentSpec(name=name, kind="graph") for name in (AGENT, OTHER)]
        await self.worker.run_queue.register("w", specs)
        return self

    async def thread(self) -> str:
        return (await self.caller.threads.create_thread()).thread_id

    def ask(self, thread_id: str, call: GraphCall | None = None, agent: str = AGENT) -> asyncio.Task[Any]:
        wanted = call or UpdateState(values=1)
        return asyncio.ensure_future(self.caller.graph_requests.ask(agent, thread_id, wanted))

    async def claim(self, *agents: str, wait: float = PATIENCE, limit: int = 1) -> list[GraphAssignment]:
        return await self.worker.graph_requests.claim("w", agents or (AGENT,), limit, wait)

    async def claim_one(self, *agents: str) -> GraphAssignment:
        (found,) = await self.claim(*agents)
        return found

    async def answer(self, claimed: GraphAssignment, answer: str = '"done"', **more: Any) -> None:
        await self.worker.graph_requests.answer(claimed.held, claimed.thread_id, answer, **more)

    async def states(self, thread_id: str) -> int:
        return len(await self.caller.threads.history(thread_id, limit=10))


def steps_in(thread_id: str) -> GraphSteps:
    """Return one checkpoint of a graph, which becomes the state of the thread."""
    id = new_uuid(1, RandomIds())
    put = GraphPut(thread_id=thread_id, checkpoint_id=id, checkpoint=("json", b"{}"))
    return GraphSteps(changes=GraphChanges(puts=[put]), states=[GraphState(checkpoint_id=id, body="{}")])


@pytest_asyncio.fixture
async def world(shared_engine_url: str) -> AsyncIterator[World]:
    namespace = f"test {uuid.uuid4().hex}"
    store = open_store(shared_engine_url, namespace=namespace)
    services = Services(store, Settings())
    yield await World(services, namespace).begin()
    await services.close()
