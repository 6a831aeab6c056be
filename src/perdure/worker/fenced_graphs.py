"""The checkpoints that the graph of one attempt reads and writes, fenced by the attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from perdure.graphs.records import GraphDelta, GraphDeltaQuery, GraphQuery, GraphSteps, GraphTuple
from perdure.threads.queue import RunQueue
from perdure.threads.work import Lease
from perdure.worker.emitter import Emitter

T = TypeVar("T")


class CallInControlLoop(Protocol):
    """Does something in the worker's loop, and waits for it in the agent's."""

    async def __call__(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T: ...


class RunGraphs:
    """Implements `perdure.agents.context.GraphCheckpoints` for one attempt."""

    def __init__(
        self,
        held: Lease,
        queue: RunQueue,
        emitter: Emitter,
        there: CallInControlLoop,
        check: Callable[[], None],
    ) -> None:
        self._held = held
        self._queue = queue
        self._emitter = emitter
        self._call_in_control_loop = there
        self._check = check
        self._control = asyncio.get_running_loop()

    def put(self, steps: GraphSteps) -> None:
        self._emitter.put_steps(steps)

    async def ready(self) -> None:
        self._check()
        if self._emitter.full:
            await self._emitter.room()
            self._check()

    async def settle(self) -> None:
        await self._call_in_control_loop(self._emitter.drain)
        self._check()

    async def find(self, query: GraphQuery) -> list[GraphTuple]:
        return await self._call_in_control_loop(lambda: self._queue.find_graphs(self._held, query))

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        return await self._call_in_control_loop(lambda: self._queue.find_deltas(self._held, query))

    def wait(self, asking: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(asking(), self._control).result()
