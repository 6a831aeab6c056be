"""Queries of runs, and the statistics of the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from perdure.kernel.clock import to_seconds
from perdure.kernel.cursors import Place
from perdure.kernel.errors import NotFound
from perdure.kernel.pages import PageRequest
from perdure.kernel.storage.filters import Clause, Listing, SortOrder, given, where
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import ENDED, LIVE, QUEUED
from perdure.rollouts.operations.conditions import NOT_OVERDUE
from perdure.service.conditions import requires
from perdure.threads import sql
from perdure.threads.model import ROLLBACK, RUN, list_rollout_statuses
from perdure.threads.operations.settle import load_runs, load_threads
from perdure.threads.operations.states import latest_states
from perdure.threads.operations.values import with_its_values
from perdure.threads.records import RunKind, RunStatus
from perdure.threads.rows import (
    LatestAttempt,
    RunCursor,
    RunRow,
    StateRow,
    ThreadAnswer,
    ThreadRow,
)

RUNS = "runs"
"""Name of the list in cursors."""


@requires(NOT_OVERDUE)
async def get_runs(tx: Tx, run_ids: Sequence[str]) -> list[RunRow | None]:
    """Get visible runs; None for others."""
    runs = await load_runs(tx, run_ids)
    return [run if run is not None and run.gone_at is None else None for run in map(runs.get, run_ids)]


async def known_runs(tx: Tx, run_ids: Sequence[str]) -> list[RunRow | NotFound]:
    """Get runs, including deleted runs with existing rows."""
    runs = await load_runs(tx, list(set(run_ids)))
    return [runs.get(run_id) or NotFound(f"Run {run_id} not found") for run_id in run_ids]


async def check_thread(tx: Tx, thread_id: str) -> None:
    """Raise NotFound if a thread is not visible. Its state is not read."""
    thread = (await load_threads(tx, [thread_id])).get(thread_id)
    if thread is None or thread.is_gone:
        raise NotFound(f"Thread {thread_id} not found")


End = tuple[RunRow, ThreadAnswer | None] | NotFound
"""Run with its thread and a state; no state before the end."""


async def get_ends(tx: Tx, run_ids: Sequence[str]) -> list[End]:
    """Get runs, including deleted runs, with the last state that each run stored."""
    return await _ends(tx, run_ids, own=True)


async def get_threads_at_end(tx: Tx, run_ids: Sequence[str]) -> list[End]:
    """Get runs with the latest state of each run's thread; later runs may have continued the thread."""
    return await _ends(tx, run_ids, own=False)


async def _ends(tx: Tx, run_ids: Sequence[str], *, own: bool) -> list[End]:
    runs = await load_runs(tx, list(set(run_ids)))
    threads = await load_threads(tx, [run.thread_id for run in runs.values()])
    ended = [run for run in runs.values() if run.rollout_status in ENDED]
    states = await _last_states(tx, ended, threads, own=own)
    ends: list[End] = []
    for run_id in run_ids:
        run = runs.get(run_id)
        if run is None:
            ends.append(NotFound(f"Run {run_id} not found"))
            continue
        thread = threads.get(run.thread_id)
        ends.append((run, None if thread is None else (thread, states.get(run_id))))
    return ends


async def _last_states(
    tx: Tx, runs: Sequence[RunRow], threads: Mapping[str, ThreadRow], *, own: bool
) -> dict[str, StateRow]:
    """Get the state of each run's thread. With `own`, get the last state stored by the run, unless the run
    was deleted or stored no state."""
    latest = await latest_states(tx, [threads[run.thread_id] for run in runs if run.thread_id in threads])
    states = {run.id: latest[run.thread_id] for run in runs if run.thread_id in latest}
    others = [run.id for run in runs if own and run.id in states and _is_of_another(states[run.id], run)]
    for state in await tx.all(sql.LAST_STATES_OF_RUNS, ids=others) if others else ():
        run_id = state.run_id or ""
        if state.thread_id == states[run_id].thread_id:
            states[run_id] = state
    return {run_id: await with_its_values(tx, state) for run_id, state in states.items()}


def _is_of_another(state: StateRow, run: RunRow) -> bool:
    return state.run_id != run.id and run.gone_at is None


async def latest_attempts(tx: Tx, run_ids: Sequence[str]) -> list[LatestAttempt]:
    """Get the latest attempt of each run that has one."""
    return await tx.all(sql.LATEST_ATTEMPTS, ids=list(run_ids))


class RunSearch(msgspec.Struct, frozen=True):
    """Filter and page of a list of runs."""

    thread_id: str | None
    status: RunStatus | None
    limit: int
    offset: int
    undone: bool = True
    """Include rolled-back runs."""
    kind: RunKind = RUN
    place: Place | None = None
    """Position after which the page starts."""
    total: bool = True
    """Return the total even if counting is necessary."""

    @property
    def order(self) -> SortOrder:
        return sql.START_ORDER if self.thread_id is None else sql.RUN_ORDER

    @property
    def request(self) -> PageRequest[Any, Place | None]:
        return PageRequest(self.order.keyset(RUNS), self.limit, self.offset, self.place)


def from_cursor(search: RunSearch, cursor: str | None) -> RunSearch:
    """Return the search with the position that a cursor encodes."""
    request = search.request.keyset.open_page(search.limit, search.offset, cursor)
    return structs.replace(search, place=request.place)


ListedRuns = tuple[Sequence[RunRow], Sequence[Any], int | None]
"""Runs, the rows with the runs' places in the list, and the total if known or requested."""


@requires(NOT_OVERDUE)
async def list_runs(tx: Tx, search: RunSearch) -> ListedRuns:
    """List a page of runs, the newest first."""
    return await (_all_runs(tx, search) if search.thread_id is None else _thread_runs(tx, search))


async def _thread_runs(tx: Tx, search: RunSearch) -> ListedRuns:
    assert search.thread_id is not None
    statuses, outcomes = _wanted(search)
    clause = where(
        sql.RUN_FIELDS,
        given(("status", "within", list(statuses) or None), ("outcome", "within", list(outcomes) or None)),
        "and",
    )
    await check_thread(tx, search.thread_id)
    bound = {"kind": search.kind, "thread_id": search.thread_id}
    listing = sql.LIST_THREAD_RUNS
    if not search.undone:
        listing, bound = sql.LIST_KEPT_RUNS, {**bound, "undone": ROLLBACK}
    page, values = listing.page(clause, search.order, search.limit, search.offset, search.place)
    rows = await tx.all(page, **bound, **values)
    total = await _total(tx, listing, clause, search, len(rows), bound)
    return rows, rows, total


async def _all_runs(tx: Tx, search: RunSearch) -> ListedRuns:
    """Merge the heads of each status or outcome, which an index has in the order of start times.

    So the time of a page does not grow with the number of runs. The total is stored if only the status of
    rollouts is filtered.
    """
    statuses, outcomes = _wanted(search)
    counts = {row.name: int(row.total) for row in await tx.all(sql.COUNT_RUNS, kind=search.kind)}
    present = [status for status in statuses or counts if counts.get(status, 0) > 0]
    bound: dict[str, Any] = {"kind": search.kind}
    listing, column, values = sql.RUN_PLACES, "status", present
    clause = Clause("TRUE", {})
    if outcomes:
        listing, column, values = sql.ENDED_RUN_PLACES, "outcome", list(outcomes)
        clause = Clause("{plain:status} {among:ends}", {"ends": present})
    places: list[RunCursor] = []
    if present and search.limit:
        page, given_values = listing.heads(
            column, values, search.order, search.limit, search.offset, search.place, clause
        )
        places = await tx.all(page, **bound, **given_values)
    runs = await load_runs(tx, [place.id for place in places])
    if outcomes:
        counted = Clause(clause.sql + " AND outcome {among:outcomes}", {**clause.values, "outcomes": values})
        total = await _total(tx, listing, counted, search, len(places), bound) if present else 0
    else:
        gone = await tx.one(sql.COUNT_GONE_RUNS, kind=search.kind, statuses=present) if present else 0
        removed = await tx.one(sql.COUNT_REMOVED_RUNS, kind=search.kind, statuses=present) if present else 0
        total = sum(counts[status] for status in present) - int(gone or 0) - int(removed or 0)
    rows = [runs[place.id] for place in places if place.id in runs]
    return rows, places, total


def _wanted(search: RunSearch) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the wanted statuses and outcomes of rollouts; empty means any."""
    return list_rollout_statuses(search.status) if search.status is not None else ((), ())


async def _total(
    tx: Tx, listing: Listing[Any], clause: Clause, search: RunSearch, found: int, bound: Mapping[str, Any]
) -> int | None:
    return await listing.total(
        tx,
        clause,
        found,
        limit=search.limit,
        offset=search.offset,
        place=search.place,
        asked=search.total,
        **bound,
    )


class QueueStats(msgspec.Struct, frozen=True):
    """Numbers of waiting and running runs, and how long they have waited."""

    n_pending: int
    n_running: int
    min_age_secs: float | None
    """Age of the oldest waiting run."""
    med_age_secs: float | None


@requires(NOT_OVERDUE)
async def stats(tx: Tx) -> QueueStats:
    counts = {row.name: int(row.total) for row in await tx.all(sql.COUNT_RUNS, kind=RUN)}
    pending = sum(counts.get(status, 0) for status in QUEUED)
    oldest = await _ages(tx, counts, median=False)
    median = await _ages(tx, counts, median=True)
    return QueueStats(
        n_pending=pending,
        n_running=sum(counts.get(status, 0) for status in LIVE),
        min_age_secs=max(oldest, default=None),
        med_age_secs=max(median, default=None),
    )


async def _ages(tx: Tx, counts: dict[str, int], *, median: bool) -> list[float]:
    """Return the age of the oldest, or of the median, waiting run for each status."""
    ages = []
    for status in sorted(QUEUED):
        total = counts.get(status, 0)
        start = await tx.one(sql.OLDEST_RUN, kind=RUN, status=status, at=total // 2 if median else 0)
        if start is not None:
            ages.append(to_seconds(tx.now - start))
    return ages
