"""Worker on an in-memory queue, with short intervals for tests."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tests.worker.queue_support import MemoryQueue

from perdure.worker.options import WorkerOptions
from perdure.worker.registry import Agents
from perdure.worker.worker import RunWorker

QUICK = {
    "concurrency": 4,
    "heartbeat": 5.0,
    "interval": 0.2,
    "grace": 0.2,
    "cancel_grace": 0.2,
    "timeout": 30.0,
}


class House:
    """Queue, its agents, and workers."""

    def __init__(self, lease: float = 30.0) -> None:
        self.queue = MemoryQueue(lease)
        self.agents = Agents()
        self.gate = threading.Event()
        """Release everything that an agent of a test waits for."""
        self.begun = threading.Event()

    def worker(self, **options: Any) -> RunWorker:
        return RunWorker(self.queue, self.agents, WorkerOptions(**{**QUICK, **options}))

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[RunWorker]:
        """Run a worker until the block ends."""
        worker = self.worker(**options)
        await worker.start()
        try:
            yield worker
        finally:
            self.gate.set()
            await worker.stop()

    async def began(self) -> None:
        """Wait until an agent has reported that it is executing."""
        assert await asyncio.to_thread(self.begun.wait, 20)

    @contextmanager
    def released(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.gate.set()
