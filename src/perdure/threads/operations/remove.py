"""Removal of threads and runs: hidden at once, their rows deleted a little later.

In between, callers that wait for a run or read its stream get their answers. Rollouts, attempts and spans
stay as the trace until retention deletes them by age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from perdure.checkpoints.operations import delete_threads as delete_graph_threads
from perdure.executions.model import PHASE
from perdure.kernel import changes
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.labels import drop_labels
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import ENDED, Kinds
from perdure.rollouts.operations.lines import lock_lines
from perdure.rollouts.operations.report import save_all
from perdure.rollouts.operations.work import LockedRollouts
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.service.audit import audit
from perdure.streams.operations import drop as drop_streams
from perdure.threads import removal_sql, sql
from perdure.threads.model import INTERRUPT, OF_PHASES, ROLLBACK, RUN
from perdure.threads.operations.cancel import end_now, refuse_phase
from perdure.threads.operations.settle import (
    drop_states,
    load_runs,
    load_threads,
    own_stream,
    point_back,
    thread_stream,
)
from perdure.threads.records import CancelAction
from perdure.threads.removal_sql import GoneRow, OldThread, RemovedRun, RemovedRuns
from perdure.threads.rows import RunRow, ThreadRow

PURGE_ROWS = 100
PURGE_WEIGHT = 1000
"""Approximate number of rows of threads, and of runs, that one transaction removes."""
FOUND_THREADS = 100
"""Page size of lists of old threads."""
THREAD = "thread"


async def _end_live(tx: Tx, run_ids: Sequence[str], action: CancelAction, grace: int, kinds: Kinds) -> None:
    if not run_ids:
        return
    work = LockedRollouts(tx, kinds)
    await work.load(run_ids, [RUN], lined=True)
    for rollout in work.rollouts.values():
        if rollout.status not in ENDED:
            await end_now(work, rollout, action, grace)
    await save_all(work, WorkerChanges(tx), True)


async def delete_thread(tx: Tx, thread_id: str, grace: int, kinds: Kinds) -> None:
    """End the thread's live runs and hide it, in the caller's name."""
    await remove_thread(tx, thread_id, grace, kinds)
    await audit(tx, "delete_thread", [thread_id])


async def remove_thread(tx: Tx, thread_id: str, grace: int, kinds: Kinds) -> None:
    """End the thread's live runs and hide it."""
    await lock_lines(tx, [thread_id])
    row = (await load_threads(tx, [thread_id])).get(thread_id)
    if row is not None and row.temporary == OF_PHASES:
        raise Conflict(f"Thread {thread_id} belongs to a workflow or a chat, and only they delete it")
    live = [row.id for row in await tx.all(sql.LIVE_RUNS, thread_ids=[thread_id])]
    await _end_live(tx, live, INTERRUPT, grace, kinds)
    thread = (await load_threads(tx, [thread_id], lock=True)).get(thread_id)
    if thread is None or (thread.is_gone and not live):
        raise NotFound(f"Thread {thread_id} not found")
    await _hide(tx, thread)


async def _hide(tx: Tx, thread: ThreadRow) -> None:
    """Hide a locked thread without live runs."""
    thread.gone_at = thread.updated_at = tx.now
    await tx.write(sql.MOVE_THREADS.of([thread]))
    await tx.execute(sql.HIDE_RUNS, thread_id=thread.id)
    await drop_labels(tx, THREAD, [thread.id])
    changes.tell(tx, "thread", [(thread.id, "deleted")])


# --- idle threads -----------------------------------------------------------------------------------------


async def old_threads(tx: Tx, before: int, after: OldThread) -> list[OldThread]:
    """List the next idle threads that have not changed since a time, after a position."""
    return await tx.all(
        removal_sql.OLD_THREADS, before=before, created_at=after.created_at, id=after.id, n=FOUND_THREADS
    )


async def old_single_threads(tx: Tx, before: int, after: OldThread) -> list[OldThread]:
    """List idle threads that were created for one run and have had no other run, after a position."""
    return await tx.all(
        removal_sql.OLD_SINGLE_THREADS,
        before=before,
        created_at=after.created_at,
        id=after.id,
        n=FOUND_THREADS,
    )


async def remove_idle(tx: Tx, thread_ids: Sequence[str], before: int, *, single: bool = False) -> list[str]:
    """Hide the idle threads that have not changed since a time; return their IDs.

    With `single`, only threads that were created for one run and have had no other run.
    """
    holders = await lock_lines(tx, thread_ids)
    live = {row.thread_id for row in await tx.all(sql.LIVE_RUNS, thread_ids=sorted(thread_ids))}
    gone: list[str] = []
    threads = await load_threads(tx, thread_ids, lock=True)
    await _drop_lines(tx, thread_ids, threads)
    kept = set(await tx.all(removal_sql.CONTINUED_THREADS, ids=sorted(thread_ids))) if single else set()
    for thread in threads.values():
        wanted = thread.single is not None and thread.id not in kept if single else thread.temporary is None
        idle = thread.gone_at is None and wanted and thread.updated_at < before
        if idle and thread.id not in live and holders[thread.id] is None:
            await _hide(tx, thread)
            gone.append(thread.id)
    return gone


async def give_up_threads(tx: Tx, thread_ids: Sequence[str]) -> None:
    """Hide the threads of ended phases."""
    for thread in (await load_threads(tx, thread_ids, lock=True)).values():
        if thread.gone_at is None and thread.temporary == OF_PHASES:
            await _hide(tx, thread)


# --- runs, and purging ------------------------------------------------------------------------------------


async def delete_run(tx: Tx, run_id: str, grace: int, kinds: Kinds) -> None:
    """End the run if it is live, and hide it with the states that it stored."""
    row = await _visible(tx, run_id)
    if row.kind == PHASE:
        raise refuse_phase(run_id, row.parent)
    await lock_lines(tx, [row.thread_id])
    row = await _visible(tx, run_id)
    await _end_live(tx, [run_id], ROLLBACK, grace, kinds)
    run = (await load_runs(tx, [run_id]))[run_id]
    thread = (await load_threads(tx, [run.thread_id], lock=True)).get(run.thread_id)
    if thread is not None and row.rollout_status in ENDED:
        await point_back(tx, thread, run_id)
        await drop_states(tx, [run_id])
        await tx.write(sql.MOVE_THREADS.of([thread]))
    run.gone_at = run.updated_at = tx.now
    await tx.write(sql.MOVE_RUNS.of([run]))
    changes.tell(tx, "run", [(run_id, "deleted")])
    await audit(tx, "delete_run", [run_id])


async def _visible(tx: Tx, run_id: str) -> RunRow:
    run = (await load_runs(tx, [run_id])).get(run_id)
    if run is None or run.gone_at is not None:
        raise NotFound(f"Run {run_id} not found")
    return run


async def purge(tx: Tx, linger: int) -> int:
    """Delete some rows of threads and runs hidden for `linger` microseconds, in all namespaces; return the
    number of threads and runs."""
    before = tx.now - linger
    threads = _few(await tx.all(removal_sql.GONE_THREADS, before=before, n=PURGE_ROWS))
    runs = _few(await tx.all(removal_sql.GONE_RUNS, before=before, n=PURGE_ROWS))
    here = tx.ns
    try:
        for ns in sorted({row.ns for row in (*threads, *runs)}):
            tx.ns = ns
            await purge_threads(tx, await _still_gone(tx, [row.id for row in threads if row.ns == ns]))
            await purge_runs(tx, [row.id for row in runs if row.ns == ns])
    finally:
        tx.ns = here
    return len(threads) + len(runs)


def _few(rows: Sequence[GoneRow]) -> list[GoneRow]:
    """Return the first rows, at least one row, with weights of at most PURGE_WEIGHT in sum."""
    taken: list[GoneRow] = []
    weight = 0
    for row in rows:
        weight += row.weight
        if taken and weight > PURGE_WEIGHT:
            break
        taken.append(row)
    return taken


async def _still_gone(tx: Tx, thread_ids: Sequence[str]) -> list[str]:
    """Lock the lines of threads, and return the threads that were not created again meanwhile."""
    if not thread_ids:
        return []
    await lock_lines(tx, thread_ids)
    threads = await load_threads(tx, thread_ids, lock=True)
    await _drop_lines(tx, thread_ids, threads)
    return [thread.id for thread in threads.values() if thread.gone_at is not None]


async def _drop_lines(tx: Tx, thread_ids: Sequence[str], threads: Mapping[str, ThreadRow]) -> None:
    """Delete lines that locking created for threads that another process has removed meanwhile."""
    missing = [id for id in thread_ids if id not in threads]
    if missing:
        await tx.execute(sql.DROP_LINES, names=missing)


async def purge_runs(tx: Tx, run_ids: Sequence[str]) -> None:
    """Delete runs. States of deleted runs are deleted already; other states go with their thread."""
    if run_ids:
        await tx.execute(sql.DROP_STEPS, ids=list(run_ids))
        await drop_streams(tx, run_ids)
        count_removed(tx, await traces_of_removed(tx, await tx.all(sql.DROP_RUNS, ids=list(run_ids))), 1)


async def traces_of_removed(tx: Tx, ids: Sequence[str]) -> list[RemovedRun]:
    """Get the rollouts of removed runs."""
    return await tx.all(removal_sql.TRACES_OF_REMOVED, ids=sorted(ids)) if ids else []


def count_removed(tx: Tx, rollouts: Sequence[RemovedRun], each: int) -> None:
    """Change the counts of rollouts of removed runs by `each`: 1, or -1 if the rollouts are deleted too."""
    counts = Counter((rollout.kind, rollout.status) for rollout in rollouts)
    if counts:
        rows = [RemovedRuns(*place, tx.shard, count * each) for place, count in sorted(counts.items())]
        tx.add(removal_sql.ADD_REMOVED_RUNS, rows)


async def purge_threads(tx: Tx, thread_ids: Sequence[str]) -> None:
    """Delete threads with all their rows. Keep a held line for the worker that still has to stop."""
    if not thread_ids:
        return
    ids = sorted(thread_ids)
    await lock_lines(tx, ids)
    while runs := await tx.all(sql.RUNS_OF_THREADS, ids=ids, n=1000):
        await purge_runs(tx, runs)
    await tx.execute(sql.DROP_CHECKPOINTS, ids=ids)
    await delete_graph_threads(tx, ids)
    await tx.execute(sql.DROP_LIFETIMES, ids=ids)
    await drop_streams(tx, [name for id in ids for name in (thread_stream(id), own_stream(id))])
    await drop_labels(tx, THREAD, ids)
    await tx.execute(sql.DROP_THREADS, ids=ids)
    await tx.execute(sql.DROP_LINES, names=ids)
