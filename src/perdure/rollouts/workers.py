"""Service of workers. A worker's row follows from its claims and heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from perdure.kernel.checks import Id, Limit, Offset, check_name, check_text
from perdure.kernel.clock import to_seconds
from perdure.kernel.errors import NotFound
from perdure.kernel.record import Record
from perdure.kernel.storage.filters import given
from perdure.rollouts import arguments, encoding
from perdure.rollouts.operations import holds, queries
from perdure.rollouts.operations import workers as operations
from perdure.rollouts.operations.queries import Query
from perdure.rollouts.records import WORKER_STATUSES, Worker, WorkerDetails, WorkerStatus
from perdure.rollouts.records import PaginatedResult as Pages
from perdure.rollouts.rows import HeldAttemptRow, WorkerRow
from perdure.rollouts.watchdog import WatchedService
from perdure.service.endpoints import GET, POST, call


class PausedQueue(Record, kw_only=True):
    """A queue, and the time since which it is paused; None if it is not."""

    queue: str
    paused_since: float | None


class Workers(WatchedService):
    """The workers of one namespace, and which of them may claim."""

    @call(GET("/workers"), scope="read")
    async def search(
        self,
        *,
        status: list[WorkerStatus] | None = None,
        contains: str | None = None,
        logic: Literal["and", "or"] = "and",
        sort_by: str | None = None,
        sort_order: Literal["asc", "desc"] = "asc",
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> Pages[WorkerDetails]:
        """List workers with the attempts that they execute; `contains` is a part of the id."""
        conditions = given(
            ("status", "within", arguments.within(status, WORKER_STATUSES, "status")),
            ("worker_id", "contains", contains),
        )
        query = arguments.query(
            conditions, logic, sort_by, sort_order, limit, offset, cursor=cursor, sorting=queries.WORKERS
        )
        page = await self.read(queries.query_workers, query)
        rows, _ = page
        held, drained = await self._held([row.id for row in rows]), await self._drained()
        return arguments.result(page, lambda row: encoding.details_from(row, held, drained), query)

    async def _held(self, worker_ids: Sequence[str]) -> Sequence[HeldAttemptRow]:
        return await self.read(queries.held_by, worker_ids, self.kinds.names())

    async def _drained(self) -> dict[str, int]:
        return holds.held(await self.read(holds.holds), holds.WORKER)

    async def query(self, query: Query) -> Pages[Worker]:
        """Return a page of workers."""
        page = await self.read(queries.query_workers, query)
        return arguments.result(page, encoding.worker_from, query)

    @call(GET("/workers/{worker_id}"), scope="read", errors=(NotFound,))
    async def get(self, worker_id: Id) -> WorkerDetails:
        """Get a worker with the attempts that it executes."""
        (row,) = await self.read(queries.get_workers, [check_text(worker_id, "worker_id")])
        if row is None:
            raise NotFound(f"Worker {worker_id} not found")
        return encoding.details_from(row, await self._held([worker_id]), await self._drained())

    @call(POST("/workers/{worker_id}/drain"), scope="write", errors=(NotFound,), repeatable=True)
    async def drain(self, worker_id: Id) -> WorkerDetails:
        """Drain a worker: it claims nothing more and finishes its attempts. It claims again after `undrain`
        or a restart."""
        await self.write(holds.drain_worker, check_text(worker_id, "worker_id"))
        return await self.get(worker_id)

    @call(POST("/workers/{worker_id}/undrain"), scope="write", errors=(NotFound,), repeatable=True)
    async def undrain(self, worker_id: Id) -> WorkerDetails:
        """Let a drained worker claim again."""
        await self.write(holds.undrain_worker, check_text(worker_id, "worker_id"))
        return await self.get(worker_id)

    @call(POST("/queues/{queue}/pause"), scope="write", repeatable=True)
    async def pause_queue(self, queue: Id) -> PausedQueue:
        """Pause a queue: claims skip it until it is resumed. Attempts under way continue."""
        since = await self.write(holds.pause_queue, check_name(queue, "queue"))
        return PausedQueue(queue=queue, paused_since=to_seconds(since))

    @call(POST("/queues/{queue}/resume"), scope="write", repeatable=True)
    async def resume_queue(self, queue: Id) -> PausedQueue:
        """Resume a paused queue."""
        await self.write(holds.resume_queue, check_name(queue, "queue"))
        return PausedQueue(queue=queue, paused_since=None)

    async def find(self, worker_id: str) -> Worker | None:
        """Return a worker, or None."""
        (row,) = await self.read(queries.get_workers, [check_text(worker_id, "worker_id")])
        return None if row is None else encoding.worker_from(row)

    @call(POST("/workers/{worker_id}/heartbeat"), scope="worker", repeatable=True)
    async def heartbeat(self, worker_id: Id, heartbeat_stats: dict[str, Any] | UnsetType = UNSET) -> Worker:
        """Record a worker's heartbeat; without statistics the last ones are kept."""
        if heartbeat_stats is None:
            raise TypeError("heartbeat_stats cannot be None; leave it out to keep the last ones")
        stats = None
        if heartbeat_stats is not UNSET:
            stats = encoding.encode_metadata(heartbeat_stats, "heartbeat_stats")
        beat = operations.Beat(check_text(worker_id, "worker_id"), stats)
        row: WorkerRow = await self.write_once(None, operations.beat, beat)
        return encoding.worker_from(row)
