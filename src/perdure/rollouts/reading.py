"""The LightningStore contract over a database: what reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.kernel.checks import check_choices, check_text, check_texts, check_timeout, optional_text
from perdure.kernel.storage.filters import given
from perdure.rollouts import arguments, encoding
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.records import (
    ROLLOUT_STATUSES,
    WORKER_STATUSES,
    Attempt,
    PaginatedResult,
    Rollout,
    Worker,
)
from perdure.rollouts.resources import ResourcesUpdate
from perdure.rollouts.service import Rollouts
from perdure.rollouts.spans import Span


class ReadingStore(LightningStore):
    """Everything that is asked of a store and changes nothing."""

    _rollouts: Rollouts

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: Any = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: Any = "asc",
    ) -> PaginatedResult[Span]:
        conditions = given(
            ("trace_id", "exact", trace_id),
            ("trace_id", "contains", trace_id_contains),
            ("span_id", "exact", span_id),
            ("span_id", "contains", span_id_contains),
            ("parent_id", "exact", parent_id),
            ("parent_id", "contains", parent_id_contains),
            ("name", "exact", name),
            ("name", "contains", name_contains),
        )
        query = arguments.query(conditions, filter_logic, sort_by, sort_order, limit, offset)
        attempt_id = optional_text(attempt_id, "attempt_id")
        page, parts = await self._rollouts.query_spans(
            check_text(rollout_id, "rollout_id"), attempt_id, query
        )
        return PaginatedResult(
            items=encoding.spans_from(page[0], parts), limit=limit, offset=offset, total=page[1]
        )

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[Any] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: Any = "and",
        sort_by: str | None = None,
        sort_order: Any = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[Any] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        statuses = status_in if status_in is not None else status
        ids = rollout_id_in if rollout_id_in is not None else rollout_ids
        conditions = given(
            ("status", "within", _choices(statuses, ROLLOUT_STATUSES)),
            ("rollout_id", "within", None if ids is None else check_texts(ids, "rollout_id_in")),
            ("rollout_id", "contains", rollout_id_contains),
        )
        query = arguments.query(conditions, filter_logic, sort_by, sort_order, limit, offset)
        (rows, total), attempts = await self._rollouts.query(query)
        items = [encoding.rollout_from(row, attempts.get(row[0])) for row in rows]
        return PaginatedResult(items=items, limit=limit, offset=offset, total=total)

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: Any = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        query = arguments.query([], "and", sort_by, sort_order, limit, offset)
        page = await self._rollouts.query_attempts(check_text(rollout_id, "rollout_id"), query)
        return arguments.result(page, encoding.attempt_from, limit, offset)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        found = await self._rollouts.get(check_text(rollout_id, "rollout_id"))
        return encoding.rollout_from(*found) if found else None

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        found = await self._rollouts.get(check_text(rollout_id, "rollout_id"))
        return encoding.attempt_from(found[1]) if found and found[1] else None

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        check_timeout(timeout)
        ids = list(dict.fromkeys(check_texts(rollout_ids, "rollout_ids")))
        ended = await self._rollouts.wait(ids, timeout)
        return [encoding.rollout_from(*ended[rollout_id]) for rollout_id in ids if rollout_id in ended]

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: Any = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        conditions = given(
            ("resources_id", "exact", resources_id), ("resources_id", "contains", resources_id_contains)
        )
        query = arguments.query(conditions, "and", sort_by, sort_order, limit, offset)
        return arguments.result(
            await self._rollouts.query_resources(query), encoding.resources_from, limit, offset
        )

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        row = await self._rollouts.get_resources(check_text(resources_id, "resources_id"))
        return encoding.resources_from(row) if row else None

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        row = await self._rollouts.latest_resources()
        return encoding.resources_from(row) if row else None

    async def query_workers(
        self,
        *,
        status_in: Sequence[Any] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: Any = "and",
        sort_by: str | None = None,
        sort_order: Any = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        conditions = given(
            ("status", "within", _choices(status_in, WORKER_STATUSES)),
            ("worker_id", "contains", worker_id_contains),
        )
        query = arguments.query(conditions, filter_logic, sort_by, sort_order, limit, offset)
        return arguments.result(
            await self._rollouts.query_workers(query), encoding.worker_from, limit, offset
        )

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        row = await self._rollouts.get_worker(check_text(worker_id, "worker_id"))
        return encoding.worker_from(row) if row else None


def _choices(statuses: Sequence[str] | None, known: Sequence[str]) -> list[str] | None:
    return None if statuses is None else check_choices(statuses, known, "status")
