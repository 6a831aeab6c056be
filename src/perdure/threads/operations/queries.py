"""Reading runs, and the statistics of the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import structs

from perdure.kernel.checks import check_page
from perdure.kernel.clock import to_seconds
from perdure.kernel.cursors import Place
from perdure.kernel.errors import NotFound
from perdure.kernel.pages import PaginatedResult
from perdure.kernel.storage.filters import given, where
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import ENDED, LIVE, QUEUED
from perdure.rollouts.operations.conditions import watched
from perdure.threads import sql
from perdure.threads.model import ROLLBACK, RUN, rollouts_of
from perdure.threads.operations.settle import load_runs, load_threads
from perdure.threads.operations.states import latest_states
from perdure.threads.operations.values import with_its_values
from perdure.threads.records import Run, RunKind, RunStatus
from perdure.threads.rows import LatestAttempt, RunRow, StateRow, ThreadAnswer, ThreadRow, run_of

RUNS = "runs"
"""The list that cursors name."""


@watched
async def get_runs(tx: Tx, run_ids: Sequence[str]) -> list[RunRow | None]:
    """The runs that are in sight."""
    found = await load_runs(tx, run_ids)
    return [run if run is not None and run.gone_at is None else None for run in map(found.get, run_ids)]


async def known_runs(tx: Tx, run_ids: Sequence[str]) -> list[RunRow | NotFound]:
    """Runs, also after they have gone out of sight."""
    found = await load_runs(tx, list(set(run_ids)))
    return [found.get(run_id) or NotFound(f"Run {run_id} not found") for run_id in run_ids]


async def check_thread(tx: Tx, thread_id: str) -> None:
    """Refuse a thread that is not in sight; its state is not read."""
    thread = (await load_threads(tx, [thread_id])).get(thread_id)
    if thread is None or thread.gone_at is not None:
        raise NotFound(f"Thread {thread_id} not found")


End = tuple[RunRow, ThreadAnswer | None] | NotFound
"""A run with its thread and a state; no state before it has ended."""


async def get_ends(tx: Tx, run_ids: Sequence[str]) -> list[End]:
    """Runs with the states that they have left, also after they have gone out of sight."""
    return await _ends(tx, run_ids, own=True)


async def get_threads_at_end(tx: Tx, run_ids: Sequence[str]) -> list[End]:
    """The same with the states of their threads, which others may have continued since."""
    return await _ends(tx, run_ids, own=False)


async def _ends(tx: Tx, run_ids: Sequence[str], *, own: bool) -> list[End]:
    runs = await load_runs(tx, list(set(run_ids)))
    threads = await load_threads(tx, [run.thread_id for run in runs.values()])
    ended = [run for run in runs.values() if run.rollout_status in ENDED]
    states = await _last_states(tx, ended, threads, own=own)
    found: list[End] = []
    for run_id in run_ids:
        run = runs.get(run_id)
        if run is None:
            found.append(NotFound(f"Run {run_id} not found"))
            continue
        thread = threads.get(run.thread_id)
        found.append((run, None if thread is None else (thread, states.get(run_id))))
    return found


async def _last_states(
    tx: Tx, runs: Sequence[RunRow], threads: Mapping[str, ThreadRow], *, own: bool
) -> dict[str, StateRow]:
    """The state of each run's thread; with `own` the last one that the run has written, if it has written
    any and was not deleted."""
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
    """The latest attempt of each run that has one."""
    return await tx.all(sql.LATEST_ATTEMPTS, ids=list(run_ids))


class RunSearch(msgspec.Struct, frozen=True):
    """What a list of runs is asked for."""

    thread_id: str | None
    status: RunStatus | None
    limit: int
    offset: int
    undone: bool = True
    """Whether those that were rolled back are among them."""
    kind: RunKind = RUN
    place: Place | None = None
    """After which run the page begins."""


def from_cursor(search: RunSearch, cursor: str | None) -> RunSearch:
    """The same search, from the place on that a cursor names."""
    check_page(search.limit, search.offset, cursor)
    return structs.replace(search, place=sql.RUN_ORDER.place(RUNS, cursor))


def page_of(rows: Sequence[RunRow], total: int, search: RunSearch) -> PaginatedResult[Run]:
    """The page of runs that was found."""
    return PaginatedResult(
        items=[run_of(row) for row in rows],
        limit=search.limit,
        offset=search.offset,
        total=total,
        next=sql.RUN_ORDER.cursor(RUNS, rows, search.limit),
    )


@watched
async def list_runs(tx: Tx, search: RunSearch) -> tuple[list[RunRow], int]:
    """A page of runs, the newest first, and how many there are in all."""
    statuses, outcomes = rollouts_of(search.status) if search.status is not None else ((), ())
    clause = where(
        sql.RUN_FIELDS,
        given(("status", "within", list(statuses) or None), ("outcome", "within", list(outcomes) or None)),
        "and",
    )
    bound: dict[str, str] = {"kind": search.kind}
    listing = sql.LIST_RUNS
    if search.thread_id is not None:
        await check_thread(tx, search.thread_id)
        listing, bound = sql.LIST_THREAD_RUNS, {**bound, "thread_id": search.thread_id}
        if not search.undone:
            listing, bound = sql.LIST_KEPT_RUNS, {**bound, "undone": ROLLBACK}
    page, values = listing.page(clause, sql.RUN_ORDER, search.limit, search.offset, search.place)
    rows = await tx.all(page, **bound, **values)
    total = await tx.one(listing.count(clause), **bound, **clause.values)
    return rows, total or 0


class QueueStats(msgspec.Struct, frozen=True):
    """How much waits and runs, and how long it has waited."""

    n_pending: int
    n_running: int
    min_age_secs: float | None
    """The age of the oldest that waits."""
    med_age_secs: float | None


@watched
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
    """The age of the oldest, or of the one in the middle, for each status of those that wait."""
    ages = []
    for status in sorted(QUEUED):
        total = counts.get(status, 0)
        start = await tx.one(sql.OLDEST_RUN, kind=RUN, status=status, at=total // 2 if median else 0)
        if start is not None:
            ages.append(to_seconds(tx.now - start))
    return ages
