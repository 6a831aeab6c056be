"""Reads single objects, filtered and sorted pages, and statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from perdure.kernel.cursors import Place
from perdure.kernel.errors import SpansEvicted
from perdure.kernel.pages import Keyset
from perdure.kernel.storage.filters import (
    Clause,
    FilterCondition,
    ListField,
    Listing,
    Sorting,
    SortKey,
    SortOrder,
    where,
)
from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.model import ENDED, LIVE
from perdure.rollouts.operations.conditions import NOT_OVERDUE
from perdure.rollouts.operations.work import ATTEMPTS_TOTAL, BYTES_TOTAL, SPANS_TOTAL
from perdure.rollouts.records import ROLLOUT_STATUSES
from perdure.rollouts.rows import AttemptRecordRow, HeldAttemptRow, ResourcesRow, RolloutRecordRow, WorkerRow
from perdure.service.conditions import requires
from perdure.spans import sql as span_sql
from perdure.spans.rows import RolloutFiguresRow, SpanRecordRow


@dataclass(frozen=True, slots=True)
class Query:
    """Filters, order and page of a listing."""

    conditions: tuple[FilterCondition, ...] = ()
    logic: str = "and"
    sort_by: str | None = None
    sort_order: str = "asc"
    limit: int = -1
    offset: int = 0
    place: Place | None = None
    """The row after which the page begins."""
    keyset: Keyset[Any, Place | None] | None = None
    """Sort key encoded in the cursors of the list; None for a list without cursors."""
    total: bool = True
    """Whether to return the total even if the rows must be counted."""


V = TypeVar("V")
HELD_ROWS = 1000

Page = tuple[Sequence[V], int | None]
"""Rows of a listing, and the total number, or None if it is not known."""


class LatestRollout(NamedTuple):
    """A rollout and its latest attempt."""

    rollout: RolloutRecordRow
    attempt: AttemptRecordRow | None


ROLLOUT_FIELDS: Mapping[str, ListField] = {
    "rollout_id": ListField("id", "text"),
    "start_time": ListField("start_time", "time"),
    "end_time": ListField("end_time", "time", null=True),
    "mode": ListField("mode", "text", null=True),
    "resources_id": ListField("resources_id", "text", null=True),
    "status": ListField("status", "text"),
    "parent": ListField("parent", "text", null=True),
}
ATTEMPT_FIELDS: Mapping[str, ListField] = {
    "rollout_id": ListField("rollout_id", "text"),
    "attempt_id": ListField("id", "text"),
    "sequence_id": ListField("sequence_id", "int"),
    "start_time": ListField("start_time", "time"),
    "end_time": ListField("end_time", "time", null=True),
    "status": ListField("status", "text"),
    "worker_id": ListField("worker_id", "text", null=True),
    "last_heartbeat_time": ListField("last_heartbeat_time", "time", null=True),
}
SPAN_FIELDS: Mapping[str, ListField] = {
    "rollout_id": ListField("rollout_id", "text"),
    "attempt_id": ListField("attempt_id", "text"),
    "sequence_id": ListField("sequence_id", "int"),
    "trace_id": ListField("trace_id", "text"),
    "span_id": ListField("span_id", "text"),
    "parent_id": ListField("parent_id", "text", null=True),
    "name": ListField("name", "text"),
    "start_time": ListField("start_ns", "time", null=True),
    "end_time": ListField("end_ns", "time", null=True),
}
RESOURCE_FIELDS: Mapping[str, ListField] = {
    "resources_id": ListField("id", "text"),
    "version": ListField("version", "int"),
    "create_time": ListField("create_time", "time"),
    "update_time": ListField("update_time", "time"),
}
WORKER_FIELDS: Mapping[str, ListField] = {
    "worker_id": ListField("id", "text"),
    "status": ListField("status", "text"),
    "last_heartbeat_time": ListField("last_heartbeat_time", "time", null=True),
    "last_dequeue_time": ListField("last_dequeue_time", "time", null=True),
    "last_busy_time": ListField("last_busy_time", "time", null=True),
    "last_idle_time": ListField("last_idle_time", "time", null=True),
    "current_rollout_id": ListField("current_rollout_id", "text", null=True),
    "current_attempt_id": ListField("current_attempt_id", "text", null=True),
}
SPAN_ORDER = SortOrder(
    (
        SortKey("sequence_id", "int"),
        SortKey("start_ns", "time", nulls="last"),
        SortKey("end_ns", "time", nulls="last"),
        SortKey("ordinal", "int"),
        # Spans of different batches may have the same ordinal.
        SortKey("rollout_id", "text"),
        SortKey("attempt_id", "text"),
        SortKey("span_id", "text"),
    )
)
_BY_START = SortOrder((SortKey("start_time", "time"), SortKey("id", "text")))
ROLLOUTS = Sorting("rollouts", ROLLOUT_FIELDS, _BY_START)
ATTEMPTS = Sorting("attempts", ATTEMPT_FIELDS, SortOrder((SortKey("sequence_id", "int"),)))
SPANS = Sorting("spans", SPAN_FIELDS, SPAN_ORDER)
RESOURCES = Sorting(
    "resources", RESOURCE_FIELDS, SortOrder((SortKey("create_time", "time"), SortKey("id", "text")))
)
VERSIONS = Sorting("versions", {}, SortOrder((SortKey("v.version", "int", descending=True),)))
WORKERS = Sorting("workers", WORKER_FIELDS, SortOrder((SortKey("id", "text"),)))


async def _page(tx: Tx, listing: Listing[V], clause: Clause, order: SortOrder, query: Query) -> Page[V]:
    """Read a page of a listing, and the number of all matching rows."""
    page, values = listing.page(clause, order, query.limit, query.offset, query.place)
    rows = await tx.all(page, **values)
    if query.limit == -1 and query.offset == 0:
        return rows, len(rows)
    total = await listing.total(
        tx,
        clause,
        len(rows),
        limit=query.limit,
        offset=query.offset,
        place=query.place,
        asked=query.total,
    )
    return rows, total


# --- rollouts ---------------------------------------------------------------------------------------------


@requires(NOT_OVERDUE)
async def query_rollouts(
    tx: Tx, query: Query, kind: str
) -> tuple[Page[RolloutRecordRow], Mapping[str, AttemptRecordRow]]:
    """Return a page of rollouts, and the latest attempt of each that has one."""
    rows, total = await _rollout_page(tx, query, kind)
    attempted = [row.id for row in rows if row.attempts]
    return (rows, total), await _latest(tx, attempted, [kind])


@requires(NOT_OVERDUE)
async def query_children(
    tx: Tx, query: Query, parent: str, kinds: Sequence[str]
) -> tuple[Page[RolloutRecordRow], Mapping[str, AttemptRecordRow]]:
    """Return a page of the children of a parent, and the latest attempt of each that has one."""
    order = ROLLOUTS.order(query.sort_by, query.sort_order)
    clause = where(ROLLOUT_FIELDS, query.conditions, query.logic)
    clause = Clause(clause.sql, {**clause.values, "parent": parent, "kinds": list(kinds)})
    rows, total = await _page(tx, sql.LIST_CHILDREN, clause, order, query)
    return (rows, total), await _latest(tx, [row.id for row in rows if row.attempts], kinds)


async def _rollout_page(tx: Tx, query: Query, kind: str) -> Page[RolloutRecordRow]:
    order = ROLLOUTS.order(query.sort_by, query.sort_order)
    if query.limit == -1 or query.sort_by not in (None, "start_time"):
        return await _scan(tx, query, kind, order)
    statuses = _statuses(query)
    if statuses is None:
        return await _scan(tx, query, kind, order)
    return await _merge_statuses(tx, query, kind, order, statuses)


async def _scan(tx: Tx, query: Query, kind: str, order: SortOrder) -> Page[RolloutRecordRow]:
    clause = where(ROLLOUT_FIELDS, query.conditions, query.logic)
    clause = Clause(clause.sql, {**clause.values, "kind": kind})
    return await _page(tx, sql.LIST_ROLLOUTS, clause, order, query)


def _statuses(query: Query) -> tuple[str, ...] | None:
    """Return the statuses of the page, or None if it has other filters."""
    if not query.conditions:
        return ROLLOUT_STATUSES
    (first, *others) = query.conditions
    if others or first.field != "status":
        return None
    return tuple(dict.fromkeys(first.value))


async def _merge_statuses(
    tx: Tx, query: Query, kind: str, order: SortOrder, statuses: Sequence[str]
) -> Page[RolloutRecordRow]:
    """Merge the first rows of each status into a page; take the total from the stored counts.

    An index orders the rows of a status, so the time does not grow with the number of rollouts.
    """
    counted = {row.status: int(row.total) for row in await tx.all(sql.COUNT_BY_STATUS, kinds=[kind])}
    total = sum(counted.get(status, 0) for status in statuses)
    present = [status for status in statuses if counted.get(status, 0)]
    if not present or query.limit == 0:
        return [], total
    heads, values = sql.LIST_ROLLOUTS.heads("status", present, order, query.limit, query.offset, query.place)
    return await tx.all(heads, kind=kind, **values), total


async def _latest(tx: Tx, rollout_ids: Sequence[str], kinds: Sequence[str]) -> dict[str, AttemptRecordRow]:
    if not rollout_ids:
        return {}
    rows = await tx.all(sql.GET_LATEST_ATTEMPTS, ids=list(rollout_ids), kinds=list(kinds))
    return {row.rollout_id: row for row in rows}


@requires(NOT_OVERDUE)
async def get_rollouts(
    tx: Tx, rollout_ids: Sequence[str], kinds: Sequence[str]
) -> list[LatestRollout | None]:
    """Return each rollout with its latest attempt; None for an unknown one."""
    rows = {row.id: row for row in await tx.all(sql.GET_ROLLOUTS, ids=list(rollout_ids), kinds=list(kinds))}
    attempts = await _latest(tx, [row.id for row in rows.values() if row.attempts], kinds)
    return [LatestRollout(rows[id], attempts.get(id)) if id in rows else None for id in rollout_ids]


@requires(NOT_OVERDUE)
async def get_ended(tx: Tx, rollout_ids: Sequence[str]) -> list[LatestRollout]:
    """Return the given rollouts that have ended."""
    rows = await tx.all(sql.GET_ENDED, ids=list(rollout_ids), ended=sorted(ENDED))
    attempts = await _latest(tx, [row.id for row in rows], sorted({row.kind for row in rows}))
    return [LatestRollout(row.view, attempts.get(row.id)) for row in rows]


async def present(tx: Tx, rollout_ids: Sequence[str]) -> list[str]:
    """Return the ids of the given rollouts that exist."""
    return await tx.all(sql.PRESENT, ids=list(rollout_ids))


async def rollouts_named(tx: Tx, rollout_ids: Sequence[str], kinds: Sequence[str]) -> list[RolloutRecordRow]:
    """Return rollouts by id, without attempts; unknown ids are left out."""
    return await tx.all(sql.GET_ROLLOUTS, ids=list(rollout_ids), kinds=list(kinds)) if rollout_ids else []


async def ended_among(tx: Tx, rollout_ids: Sequence[str]) -> list[str]:
    return await tx.all(sql.ENDED_AMONG, ids=list(rollout_ids), ended=sorted(ENDED))


# --- attempts, spans, resources, workers ------------------------------------------------------------------


@requires(NOT_OVERDUE)
async def query_attempts(
    tx: Tx, rollout_id: str, query: Query, kinds: Sequence[str]
) -> Page[AttemptRecordRow]:
    if await tx.one(sql.ROLLOUT_EXISTS, id=rollout_id, kinds=list(kinds)) is None:
        return [], 0
    order = ATTEMPTS.order(query.sort_by, query.sort_order)
    return await _page(tx, sql.LIST_ATTEMPTS, Clause("TRUE", {"rollout_id": rollout_id}), order, query)


@requires(NOT_OVERDUE)
async def query_spans(
    tx: Tx, rollout_id: str, attempt_id: str | None, query: Query, kinds: Sequence[str]
) -> tuple[Page[SpanRecordRow], Mapping[str, bytes]]:
    """Return a page of a rollout's spans, and a mapping from hash to content of parts that spans share."""
    await refuse_deleted(tx, rollout_id)
    if attempt_id == "latest":
        latest = (await _latest(tx, [rollout_id], kinds)).get(rollout_id)
        if latest is None:
            return ([], 0), {}
        attempt_id = latest.id
    order = SPANS.order(query.sort_by, query.sort_order)
    clause = where(SPAN_FIELDS, query.conditions, query.logic)
    values = {**clause.values, "rollout_id": rollout_id}
    listing = sql.LIST_SPANS
    if attempt_id is not None:
        listing, values["attempt_id"] = sql.LIST_ATTEMPT_SPANS, attempt_id
    rows, total = await _page(tx, listing, Clause(clause.sql, values), order, query)
    return (rows, total), await shared_parts(tx, rows)


async def refuse_deleted(tx: Tx, rollout_id: str) -> None:
    """Raise if spans of the rollout were deleted, so that callers do not assume that it had none."""
    if await tx.one(sql.IS_EVICTED, rollout_id=rollout_id):
        raise SpansEvicted(
            f"the spans of rollout {rollout_id} were deleted: to free memory, or because of their age"
        )


async def shared_parts(tx: Tx, rows: Sequence[SpanRecordRow]) -> Mapping[str, bytes]:
    """Return the parts that spans share, by hash."""
    shared = ((row.resource_hash, row.scope_hash) for row in rows)
    hashes = sorted({name for pair in shared for name in pair if name is not None})
    return {row.hash: bytes(row.body) for row in await tx.all(sql.GET_PARTS, hashes=hashes)} if hashes else {}


async def query_resources(tx: Tx, query: Query) -> Page[ResourcesRow]:
    order = RESOURCES.order(query.sort_by, query.sort_order)
    clause = where(RESOURCE_FIELDS, query.conditions, query.logic)
    return await _page(tx, sql.LIST_RESOURCES, clause, order, query)


async def query_versions(tx: Tx, resources_id: str, query: Query) -> Page[ResourcesRow]:
    """Return a page of the versions of resources, the newest first."""
    clause = Clause("TRUE", {"id": resources_id})
    return await _page(tx, sql.LIST_VERSIONS, clause, VERSIONS.ties, query)


async def get_version(tx: Tx, resources_id: str, version: int) -> ResourcesRow | None:
    return await tx.one(sql.GET_VERSION, id=resources_id, version=version)


@requires(NOT_OVERDUE)
async def query_workers(tx: Tx, query: Query) -> Page[WorkerRow]:
    order = WORKERS.order(query.sort_by, query.sort_order)
    clause = where(WORKER_FIELDS, query.conditions, query.logic)
    return await _page(tx, sql.LIST_WORKERS, clause, order, query)


async def held_by(tx: Tx, worker_ids: Sequence[str], kinds: Sequence[str]) -> list[HeldAttemptRow]:
    """Return the attempts that workers execute."""
    if not worker_ids:
        return []
    terms = {"ids": worker_ids, "kinds": kinds, "statuses": sorted(LIVE)}
    return await tx.all(sql.HELD_BY, **terms, n=HELD_ROWS)


async def get_workers(tx: Tx, ids: Sequence[str]) -> list[WorkerRow | None]:
    rows = {row.id: row for row in await tx.all(sql.GET_WORKERS, ids=list(ids))}
    return [rows.get(worker_id) for worker_id in ids]


async def statistics(tx: Tx, kind: str) -> dict[str, int]:
    """Return the numbers of objects in the namespace."""
    rollouts = sum(int(row.total) for row in await tx.all(sql.COUNT_BY_STATUS, kinds=[kind]))
    totals: Counter[str] = Counter()
    for row in await tx.all(sql.GET_TOTALS):
        totals[row.name] += row.total
    return {
        "total_rollouts": rollouts,
        "total_attempts": totals[ATTEMPTS_TOTAL],
        "total_spans": totals[SPANS_TOTAL],
        "total_resources": await tx.one(sql.COUNT_RESOURCES) or 0,
        "total_workers": await tx.one(sql.COUNT_WORKERS) or 0,
        "total_span_bytes": totals[BYTES_TOTAL],
    }


async def get_figures(tx: Tx, rollout_ids: Sequence[str]) -> list[RolloutFiguresRow]:
    """Return the figures of the given rollouts that have some."""
    return await tx.all(span_sql.GET_FIGURES, ids=list(rollout_ids)) if rollout_ids else []
