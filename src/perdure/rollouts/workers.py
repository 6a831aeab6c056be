"""The service of workers, which follow from what they claim and from their heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from perdure.access.endpoints import GET, POST, call
from perdure.kernel.checks import Id, Limit, Offset, check_page, check_text
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.filters import given
from perdure.rollouts import arguments, encoding
from perdure.rollouts.operations import queries
from perdure.rollouts.operations import workers as operations
from perdure.rollouts.operations.queries import Query
from perdure.rollouts.records import WORKER_STATUSES, Worker, WorkerDetails, WorkerStatus
from perdure.rollouts.records import PaginatedResult as Pages
from perdure.rollouts.rows import HeldRow, WorkerRow
from perdure.rollouts.watchdog import WatchedService


class Workers(WatchedService):
    """The workers of one namespace."""

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
    ) -> Pages[WorkerDetails]:
        """List workers with what they execute; `contains` is a part of the id."""
        check_page(limit, offset)
        conditions = given(
            ("status", "within", arguments.within(status, WORKER_STATUSES, "status")),
            ("worker_id", "contains", contains),
        )
        query = arguments.query(conditions, logic, sort_by, sort_order, limit, offset)
        page = await self.read(queries.query_workers, query)
        rows, _ = page
        held = await self._held([row.id for row in rows])
        return arguments.result(page, lambda row: encoding.details_from(row, held), query)

    async def _held(self, worker_ids: Sequence[str]) -> Sequence[HeldRow]:
        return await self.read(queries.held_by, worker_ids, self.kinds.names())

    async def query(self, query: Query) -> Pages[Worker]:
        """A page of workers."""
        page = await self.read(queries.query_workers, query)
        return arguments.result(page, encoding.worker_from, query)

    @call(GET("/workers/{worker_id}"), scope="read", errors=(NotFound,))
    async def get(self, worker_id: Id) -> WorkerDetails:
        """Get a worker with what it executes."""
        (row,) = await self.read(queries.get_workers, [check_text(worker_id, "worker_id")])
        if row is None:
            raise NotFound(f"Worker {worker_id} not found")
        return encoding.details_from(row, await self._held([worker_id]))

    async def find(self, worker_id: str) -> Worker | None:
        """A worker, or None."""
        (row,) = await self.read(queries.get_workers, [check_text(worker_id, "worker_id")])
        return None if row is None else encoding.worker_from(row)

    @call(POST("/workers/{worker_id}/heartbeat"), scope="worker", repeatable=True)
    async def heartbeat(self, worker_id: Id, heartbeat_stats: dict[str, Any] | UnsetType = UNSET) -> Worker:
        """Record a worker's heartbeat; without statistics the last ones stay."""
        if heartbeat_stats is None:
            raise TypeError("heartbeat_stats cannot be None; leave it out to keep the last ones")
        stats = None
        if heartbeat_stats is not UNSET:
            stats = encoding.encode_metadata(heartbeat_stats, "heartbeat_stats")
        beat = operations.Beat(check_text(worker_id, "worker_id"), stats)
        row: WorkerRow = await self.write_once(None, operations.beat, beat)
        return encoding.worker_from(row)
