"""Views of a whole database: counts, queues, namespaces and the feed of changes."""

from __future__ import annotations

from collections.abc import Collection

from perdure.kernel.changes import changed_in, follow
from perdure.kernel.clock import to_seconds
from perdure.kernel.record import Record
from perdure.kernel.signals.port import Stream
from perdure.kernel.storage.port import Storage
from perdure.rollouts.operations import overview
from perdure.rollouts.operations.overview import Depth, States
from perdure.service.namespaces import find_namespace, list_namespaces
from perdure.service.tables import SYSTEM


class QueueState(Record, kw_only=True):
    """Numbers of the waiting rollouts of a queue."""

    namespace: str
    queue: str
    ready: int
    """Rollouts that can be claimed at once."""
    delayed: int
    """Rollouts that wait for their time."""
    waiting: int
    """Rollouts that wait in a line for the one before them."""
    oldest_age_seconds: float | None = None
    """How long the oldest claimable rollout has been ready."""
    paused_since: float | None = None
    """Time since which the queue is paused; None if it is not."""


class Counts(Record, kw_only=True):
    """Numbers of rollouts and workers by namespace and status, and the queues."""

    rollouts: States
    workers: States
    queues: list[QueueState]


class Overview:
    """Reads a whole database. Each method gets the namespaces that its caller may see."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def ping(self) -> None:
        """Read from the database, or raise why it cannot be reached."""
        await self._storage.read(overview.ping)

    async def counts(self, namespaces: Collection[str] | None) -> Counts:
        """Return all counts, of these namespaces or of all."""
        glance = await self._storage.read(overview.glance, namespaces)
        queues = [queue_state(depth, glance.names[depth.ns], glance.now) for depth in glance.queues]
        return Counts(rollouts=glance.rollouts, workers=glance.workers, queues=queues)

    async def queues(self, namespaces: Collection[str] | None) -> list[QueueState]:
        """List the queues with waiting rollouts."""
        now, names, depths = await self._storage.read(overview.queues, namespaces)
        return [queue_state(depth, names[depth.ns], now) for depth in depths]

    async def namespaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return sorted((await self._storage.read(list_namespaces)).values())

    async def changes(self, namespace: str, limit: int, *, system: bool = False) -> Stream:
        """Follow the changes of a namespace, with `system` also those of tokens; see `kernel.changes`."""
        number = await self._storage.read(find_namespace, namespace)
        also = (SYSTEM,) if system else ()
        if number is None:
            return _AwaitedChanges(self._storage, namespace, limit, also)
        return follow(self._storage.signals, (number, *also), limit)


class _AwaitedChanges:
    """Changes of a namespace that does not exist yet. Filters the changes of all namespaces."""

    def __init__(self, storage: Storage, namespace: str, limit: int, also: tuple[int, ...]) -> None:
        self._storage = storage
        self._namespace = namespace
        self._wanted = also
        self._exists = False
        self._stream = follow(storage.signals, None, limit)

    async def next(self, timeout: float | None = None) -> list[str] | None:
        while keys := await self._stream.next(timeout):
            if not self._exists:
                number = await self._storage.read(find_namespace, self._namespace)
                self._exists = number is not None
                self._wanted = self._wanted if number is None else (number, *self._wanted)
            if wanted := changed_in(self._wanted, keys):
                return wanted
        return keys

    def close(self) -> None:
        self._stream.close()


def queue_state(depth: Depth, namespace: str, now: int) -> QueueState:
    """Build the state of a queue at a time."""
    age = None if depth.oldest is None else to_seconds(max(now - depth.oldest, 0))
    return QueueState(
        namespace=namespace,
        queue=depth.queue,
        ready=depth.ready,
        delayed=depth.delayed,
        waiting=depth.waiting,
        oldest_age_seconds=age,
        paused_since=None if depth.paused is None else to_seconds(depth.paused),
    )
