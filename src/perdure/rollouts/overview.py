"""What is read of a whole database: counts, queues, namespaces and the feed of changes."""

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
    """How much waits in a queue."""

    namespace: str
    queue: str
    ready: int
    """So many can be claimed at once."""
    delayed: int
    """So many wait for their time."""
    waiting: int
    """So many wait in a line for the one before them."""
    oldest_age_seconds: float | None = None
    """How long the oldest that can be claimed has been ready."""
    paused_since: float | None = None
    """Since when nothing is claimed from it; None if it is not paused."""


class Counts(Record, kw_only=True):
    """How many there are, by namespace and status."""

    rollouts: States
    workers: States
    queues: list[QueueState]


class Overview:
    """Reads a whole database; which namespaces a caller may see is said with each question."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def ping(self) -> None:
        """Reach the database, or raise what is in the way."""
        await self._storage.read(overview.ping)

    async def counts(self, namespaces: Collection[str] | None) -> Counts:
        """Everything that is counted, in these namespaces or in all."""
        found = await self._storage.read(overview.glance, namespaces)
        queues = [queue_state(depth, found.names[depth.ns], found.now) for depth in found.queues]
        return Counts(rollouts=found.rollouts, workers=found.workers, queues=queues)

    async def queues(self, namespaces: Collection[str] | None) -> list[QueueState]:
        """The queues in which something waits."""
        now, names, depths = await self._storage.read(overview.queues, namespaces)
        return [queue_state(depth, names[depth.ns], now) for depth in depths]

    async def namespaces(self) -> list[str]:
        """The names of all namespaces."""
        return sorted((await self._storage.read(list_namespaces)).values())

    async def changes(self, namespace: str, limit: int, *, system: bool = False) -> Stream:
        """What changes in a namespace from now on, with `system` also the tokens; see `kernel.changes`."""
        number = await self._storage.read(find_namespace, namespace)
        also = (SYSTEM,) if system else ()
        if number is None:
            return _AwaitedChanges(self._storage, namespace, limit, also)
        return follow(self._storage.signals, (number, *also), limit)


class _AwaitedChanges:
    """The changes of a namespace that did not exist at first: those of all namespaces are looked through."""

    def __init__(self, storage: Storage, namespace: str, limit: int, also: tuple[int, ...]) -> None:
        self._storage = storage
        self._namespace = namespace
        self._wanted = also
        self._known = False
        self._stream = follow(storage.signals, None, limit)

    async def next(self, timeout: float | None = None) -> list[str] | None:
        while keys := await self._stream.next(timeout):
            if not self._known:
                number = await self._storage.read(find_namespace, self._namespace)
                self._known = number is not None
                self._wanted = self._wanted if number is None else (number, *self._wanted)
            if found := changed_in(self._wanted, keys):
                return found
        return keys

    def close(self) -> None:
        self._stream.close()


def queue_state(depth: Depth, namespace: str, now: int) -> QueueState:
    """What is shown of a queue at a time."""
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
