"""Claims of a worker: repeated at once while there may be more runs, otherwise after a hint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from perdure.runs.claimer import Claimer
from perdure.runs.queue import RunQueue
from perdure.threads.work import Assignment
from perdure.worker.options import WorkerOptions


class Lane:
    """Slots that some agents of a worker share, so that they do not wait for runs of other agents."""

    def __init__(self, names: Callable[[], list[str]], slots: int) -> None:
        self.names = names
        """Returns the names of these agents."""
        self.slots = slots
        self.executing: set[str] = set()
        """Attempts that occupy a slot."""
        self.freed = asyncio.Event()

    def free(self) -> int:
        """Return how many more runs the lane can take."""
        return self.slots - len(self.executing)


class WorkerClaims:
    """Claims of one worker, in its event loop.

    The claimer exists from before a claim until the worker is full. So a hint between two claims is not lost,
    and a full worker takes no hint from other workers.
    """

    def __init__(self, queue: RunQueue, options: WorkerOptions) -> None:
        self._queue = queue
        self._options = options
        self._claimer: Claimer | None = None
        self._agents: Sequence[str] = ()

    async def next(self, agents: Sequence[str], free: Callable[[], int]) -> list[Assignment]:
        """Wait for runs of these agents, and return up to `free()`; none after the polling interval."""
        options, assignments = self._options, None
        if self._claimer is not None and agents == self._agents:
            assignments = await self._claimer.next(free, options.interval)
        else:
            self.close()
            self._claimer = self._queue.claimer(options.worker_id, agents, options.queues)
            self._agents = agents
        if self._claimer is None:
            return await self._queue.claim(
                options.worker_id, agents, free(), options.interval, options.queues
            )
        if assignments is None:
            assignments = await self._claimer.claim(free())
        if free() <= len(assignments):
            self.close()
        return assignments

    def close(self) -> None:
        """Stop watching for hints; the next call claims at once."""
        if self._claimer is not None:
            self._claimer.close()
            self._claimer = None
