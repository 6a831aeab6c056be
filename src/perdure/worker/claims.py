"""How a worker claims: again at once while there may be more, and else when there is a hint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from perdure.runs.claimer import Claimer
from perdure.runs.queue import RunQueue
from perdure.threads.work import Assignment
from perdure.worker.options import WorkerOptions


class Lane:
    """Slots that some agents of a worker share, so that they wait for no run of the others."""

    def __init__(self, names: Callable[[], list[str]], slots: int) -> None:
        self.names = names
        """Returns the names of these agents."""
        self.slots = slots
        self.executing: set[str] = set()
        """The attempts that occupy a slot."""
        self.freed = asyncio.Event()

    def free(self) -> int:
        """Return how many more runs it can take."""
        return self.slots - len(self.executing)


class WorkerClaims:
    """The claims of one worker, in its event loop.

    Its claimer is there from before a claim until the worker is full: a hint that comes between two claims is
    not lost, and a full worker takes none from the others.
    """

    def __init__(self, queue: RunQueue, options: WorkerOptions) -> None:
        self._queue = queue
        self._options = options
        self._claimer: Claimer | None = None
        self._agents: Sequence[str] = ()

    async def next(self, agents: Sequence[str], free: Callable[[], int]) -> list[Assignment]:
        """As many runs of these agents as are `free` then, as soon as there are some; none after a while."""
        options, found = self._options, None
        if self._claimer is not None and agents == self._agents:
            found = await self._claimer.next(free, options.interval)
        else:
            self.close()
            self._claimer = self._queue.claimer(options.worker_id, agents, options.queues)
            self._agents = agents
        if self._claimer is None:
            return await self._queue.claim(
                options.worker_id, agents, free(), options.interval, options.queues
            )
        if found is None:
            found = await self._claimer.claim(free())
        if free() <= len(found):
            self.close()
        return found

    def close(self) -> None:
        """Watch no more; the next claim is made at once."""
        if self._claimer is not None:
            self._claimer.close()
            self._claimer = None
