"""What is read beside the contract: counts, queues, the versions of resources and the feed of changes."""

from __future__ import annotations

from collections.abc import Collection

from perdure.access.operations import ensure_namespace, list_namespaces
from perdure.kernel.changes import follow
from perdure.kernel.checks import check_text
from perdure.kernel.clock import to_seconds
from perdure.kernel.record import Record
from perdure.kernel.signals.port import Stream
from perdure.kernel.storage.port import Storage
from perdure.rollouts import arguments, encoding
from perdure.rollouts.operations import overview, queries
from perdure.rollouts.operations.overview import Depth, States
from perdure.rollouts.records import PaginatedResult
from perdure.rollouts.resources import ResourcesUpdate

LARGEST = 2**63 - 1


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
        queues = [_queue_state(depth, found.now) for depth in found.queues]
        return Counts(rollouts=found.rollouts, workers=found.workers, queues=queues)

    async def queues(self, namespaces: Collection[str] | None) -> list[QueueState]:
        """The queues in which something waits."""
        now, depths = await self._storage.read(overview.queues, namespaces)
        return [_queue_state(depth, now) for depth in depths]

    async def namespaces(self) -> list[str]:
        """The names of all namespaces."""
        return sorted((await self._storage.read(list_namespaces)).values())

    async def query_versions(
        self, namespace: str, resources_id: str, *, limit: int, offset: int
    ) -> PaginatedResult[ResourcesUpdate]:
        """A page of the versions of resources, the newest first."""
        query = arguments.query((), "and", None, "asc", limit, offset)
        check_text(resources_id, "resources_id")
        ns = await self._storage.run(ensure_namespace, namespace)
        page = await self._storage.read(queries.query_versions, resources_id, query, ns=ns)
        return arguments.result(page, encoding.resources_from, limit, offset)

    async def get_version(self, namespace: str, resources_id: str, version: int) -> ResourcesUpdate | None:
        check_text(resources_id, "resources_id")
        if not 0 < version <= LARGEST:
            return None
        ns = await self._storage.run(ensure_namespace, namespace)
        row = await self._storage.read(queries.get_version, resources_id, version, ns=ns)
        return encoding.resources_from(row) if row else None

    async def changes(self, namespace: str, limit: int) -> Stream:
        """What changes in a namespace from now on; see `perdure.kernel.changes`."""
        return follow(self._storage.signals, await self._storage.run(ensure_namespace, namespace), limit)


def _queue_state(depth: Depth, now: int) -> QueueState:
    age = None if depth.oldest is None else to_seconds(max(now - depth.oldest, 0))
    return QueueState(
        namespace=depth.namespace,
        queue=depth.queue,
        ready=depth.ready,
        delayed=depth.delayed,
        waiting=depth.waiting,
        oldest_age_seconds=age,
    )
