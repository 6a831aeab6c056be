"""How a worker claims: again at once while there may be more, and else when there is a hint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.kernel.signals.port import Watch
from perdure.threads.queue import RunQueue
from perdure.threads.work import Assignment
from perdure.worker.options import WorkerOptions


class Claims:
    """The claims of one worker, in its event loop.

    The hints are watched from before a claim until the worker is full: one that comes between two claims is
    not lost, and a full worker takes none from the others.
    """

    def __init__(self, queue: RunQueue, options: WorkerOptions) -> None:
        self._queue = queue
        self._options = options
        self._watch: Watch | None = None
        self._watched: Sequence[str] = ()

    async def next(self, agents: Sequence[str], free: Callable[[], int]) -> list[Assignment]:
        """As many runs of these agents as are `free` then, as soon as there are some; none after a while."""
        wait = 0.0
        if self._watch is not None and agents == self._watched:
            await self._watch.changed(self._options.interval)
        elif not self._watches(agents):
            wait = self._options.interval
        limit = free()
        found = await self._queue.claim(self._options.worker_id, agents, limit, wait, self._options.queues)
        if len(found) >= limit:
            self.close()
        return found

    def _watches(self, agents: Sequence[str]) -> bool:
        """Whether hints are watched from now on; a queue elsewhere waits by itself."""
        self.close()
        self._watch = self._queue.watch_ready(agents, self._options.queues)
        self._watched = agents
        return self._watch is not None

    def close(self) -> None:
        """Watch no more; the next claim is made at once."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
