"""Effects of a run's end on its thread, stream, webhook and checkpoints.

Every transaction that ends a run or a phase settles it here, whatever ends it.
That transaction has locked the line of every run's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.checkpoints.operations import delete_runs as delete_graph_runs
from perdure.executions.model import PHASE, PhaseReport
from perdure.kernel import changes
from perdure.kernel.errors import PerdureError
from perdure.kernel.storage.port import Tx
from perdure.outbox.operations import NewEffect
from perdure.outbox.operations import put as put_effects
from perdure.rollouts.model import SUCCEEDED, TIMEOUT, UNRESPONSIVE, AttemptEnd, EndedRollout, RolloutKind
from perdure.streams.model import NewEvent
from perdure.streams.operations import AppendedEvents, StreamAppend, append
from perdure.threads import sql
from perdure.threads.model import (
    FAILURES,
    ROLLBACK,
    RUN,
    SILENT,
    TEMPORARY,
    exceeded,
    resting_status,
    took_too_long,
)
from perdure.threads.operations.shown import store_run_states
from perdure.threads.operations.values import with_its_values
from perdure.threads.records import Failure
from perdure.threads.rows import (
    CONTROLS,
    END_EVENTS,
    NOTHING_NEXT,
    NextOf,
    RunRow,
    StateRow,
    ThreadRow,
    failure_text,
    run_limits,
    webhook_body,
)

RUN_ENDED = "runs.ended"
"""Name of the counter of ended runs, by status."""
STOPPED_CHANNEL = "threads.stopped"
WEBHOOK = "webhook"


def get_last(answer: AppendedEvents | int | PerdureError) -> int | PerdureError:
    """Return the number of the last event of an append."""
    if not isinstance(answer, tuple):
        return answer
    _, place = answer
    return place.last_seq


@dataclass(slots=True)
class RunEndReport(PhaseReport):
    """Report from the operation that ends a run to `settle_runs`, and its answer.

    The operation sets why the run failed, whether a worker still executes it, its last events, and its thread
    and last state if they are in memory. `settle_runs` sets `run` and `placed`.
    """

    failure: Failure | None = None
    executed: bool = False
    events: Sequence[NewEvent] = ()
    thread: ThreadRow | None = None
    """Locked, and changed by the last work of the run; written with the end."""
    state: StateRow | None = None
    """Latest state of the thread."""
    before: RunRow | None = None
    """Run before its end."""
    run: RunRow | None = None
    placed: AppendedEvents | None = None


def thread_stream(thread_id: str) -> str:
    """Return the name of the stream over all runs of a thread."""
    return "thread/" + thread_id


def own_stream(thread_id: str) -> str:
    """Return the name of the stream of a thread's own events."""
    return "state/" + thread_id


async def load_threads(tx: Tx, ids: Sequence[str], *, lock: bool = False) -> dict[str, ThreadRow]:
    query = sql.LOCK_THREADS if lock else sql.GET_THREADS
    return {row.id: row for row in await tx.all(query, ids=sorted(set(ids)))}


async def load_runs(tx: Tx, ids: Sequence[str]) -> dict[str, RunRow]:
    return {row.id: row for row in await tx.all(sql.GET_RUNS, ids=list(ids))}


async def settle_runs(tx: Tx, ended: Sequence[EndedRollout]) -> None:
    """Settle ended runs: close streams, move threads on, enqueue webhooks."""
    if not ended:
        return
    runs = await _load_runs(tx, ended)
    loaded = [end.report.thread for end in ended if isinstance(end.report, RunEndReport)]
    threads = {thread.id: thread for thread in loaded if thread is not None}
    missing = [run.thread_id for run in runs.values() if run.thread_id not in threads]
    if missing:
        threads |= await load_threads(tx, missing, lock=True)
    settling = _Settling(tx, runs, threads)
    for end in ended:
        await settling.end(end)
    await settling.save()


async def _load_runs(tx: Tx, ended: Sequence[EndedRollout]) -> dict[str, RunRow]:
    """Return the ended runs. Read only the runs that are not in a report."""
    runs: dict[str, RunRow] = {}
    for end in ended:
        if isinstance(end.report, RunEndReport) and (run := end.report.before) is not None:
            run.rollout_status, run.outcome = end.status, end.outcome
            run.attempts, run.end_time = end.attempts, end.end_time
            runs[run.id] = run
    unread = [end.rollout_id for end in ended if end.rollout_id not in runs]
    return runs | await load_runs(tx, unread) if unread else runs


class _Settling:
    """Runs that end in one transaction, with their threads."""

    def __init__(self, tx: Tx, runs: Mapping[str, RunRow], threads: Mapping[str, ThreadRow]) -> None:
        self._tx = tx
        self._runs = runs
        self._threads = threads
        self._ended: list[RunRow] = []
        self._reports: list[RunEndReport] = []
        self._appends: list[StreamAppend] = []
        self._rests: dict[str, list[RunRow]] = {}

    async def end(self, end: EndedRollout) -> None:
        run = self._runs[end.rollout_id]
        report = end.report if isinstance(end.report, RunEndReport) else RunEndReport()
        failure = report.failure or _reason(run)
        run.error = failure_text(failure)
        run.updated_at = self._tx.now
        report.run = run
        self._ended.append(run)
        self._reports.append(report)
        self._close_stream(run, failure, report.events)
        thread = self._threads.get(run.thread_id)
        if run.outcome == ROLLBACK and thread is not None:
            await point_back(self._tx, thread, run.id)
            if not report.executed:
                await drop_states(self._tx, [run.id])
        if thread is not None:
            self._rest(thread, run)

    def _close_stream(self, run: RunRow, failure: Failure | None, first: Sequence[NewEvent]) -> None:
        events = list(first)
        if run.outcome in CONTROLS:
            events.append(CONTROLS[run.outcome])
        if failure is not None:
            events.append(NewEvent("error", failure_text(failure) or ""))
        events.append(END_EVENTS[run.status])
        self._appends.append(
            StreamAppend(
                run.id,
                events,
                attempt=run.attempts,
                into=thread_stream(run.thread_id),
                ends=True,
                thread_id=run.thread_id,
            )
        )

    def _rest(self, thread: ThreadRow, run: RunRow) -> None:
        """Collect the runs that end in each thread; the threads' states are read later in one query."""
        self._rests.setdefault(thread.id, []).append(run)
        if run.status in FAILURES:
            thread.error = run.error
        elif run.status == "success":
            thread.error = None

    async def save(self) -> None:
        """Write everything, once the threads with further live runs are known."""
        tx = self._tx
        await self._move_threads()
        await tx.defer(sql.MOVE_RUNS.of(self._ended))
        places = await append(tx, self._appends)
        for report, new, place in zip(self._reports, self._appends, places, strict=True):
            report.placed = (new, place)
        await self._tell_webhooks()
        changes.tell(tx, "run", ((run.id, run.status) for run in self._ended))
        for run in self._ended:
            tx.count(RUN_ENDED, run.status)

    async def _move_threads(self) -> None:
        tx, ids = self._tx, sorted(self._rests)
        if not ids:
            return
        ended = {run.id for run in self._ended}
        # A phase of a workflow run is the only live run of its thread.
        shared = [id for id in ids if any(run.parent is None for run in self._rests[id])]
        live = await tx.all(sql.LIVE_RUNS, thread_ids=shared) if shared else []
        busy = {row.thread_id for row in live if row.id not in ended}
        unfinished = await self._unfinished(ids)
        for thread_id in ids:
            thread = self._threads[thread_id]
            goes, asked = False, thread.rest == "interrupted"
            for run in self._rests[thread_id]:
                began, more = run.attempts > 0, thread_id in unfinished
                before = thread.rest
                thread.rest = resting_status(run.status, began=began, unfinished=more, before=before)
                if thread.temporary == TEMPORARY and before == "error":
                    # A failed run keeps its temporary thread visible.
                    thread.rest = before
                    # A phase that asks a person continues in its thread.
                waits = more and run.kind == PHASE and run.status == "success"
                failed = run.temporary == TEMPORARY and run.status in FAILURES
                if run.temporary is not None and not waits and not failed:
                    run.gone_at = tx.now
                if thread.temporary == TEMPORARY:
                    goes = thread.rest != "error"
                else:
                    goes = not (waits or run.on_completion == "keep")
            thread.status = "busy" if thread_id in busy else thread.rest
            thread.updated_at = tx.now
            if thread.temporary is not None and goes and thread_id not in busy:
                thread.gone_at = tx.now
                if asked:
                    await tx.execute(sql.HIDE_RUNS, thread_id=thread_id)
        await tx.defer(sql.MOVE_THREADS.of([self._threads[id] for id in ids]))
        changes.tell(tx, "thread", ((id, self._threads[id].status) for id in ids))

    async def _unfinished(self, ids: Sequence[str]) -> set[str]:
        """Return the threads with next steps in their state."""
        reported = {state.thread_id: state for end in self._reports if (state := end.state) is not None}
        threads = [id for id in ids if id not in reported and self._threads[id].checkpoint_id is not None]
        states = [self._threads[id].checkpoint_id for id in threads]
        rows = await self._tx.all(sql.NEXT_OF, thread_ids=threads, ids=states) if threads else []
        rows += [NextOf(state.thread_id, state.id, state.next, "") for state in reported.values()]
        return {
            row.thread_id
            for row in rows
            if row.id == self._threads[row.thread_id].checkpoint_id and row.next != NOTHING_NEXT
        }

    async def _tell_webhooks(self) -> None:
        notified = [run for run in self._ended if run.webhook is not None]
        if not notified:
            return
        rows = await self._tx.all(sql.STARTED, ids=[run.id for run in notified])
        started = {row.rollout_id: row.start_time for row in rows}
        bodies = [await self._payload(run, started.get(run.id)) for run in notified]
        pairs = zip(notified, bodies, strict=True)
        await put_effects(self._tx, [NewEffect(WEBHOOK, run.id, body, run.webhook) for run, body in pairs])

    async def _payload(self, run: RunRow, started: int | None) -> str:
        thread = self._threads.get(run.thread_id)
        values = None
        if thread is not None and thread.checkpoint_id is not None:
            row = await self._tx.one(sql.GET_CHECKPOINT, thread_id=thread.id, id=thread.checkpoint_id)
            values = None if row is None else (await with_its_values(self._tx, row)).body
        return webhook_body(run, values, started, self._tx.now)


def _reason(run: RunRow) -> Failure | None:
    """Build the failure of a run for which no worker reported a failure."""
    if run.outcome == UNRESPONSIVE:
        return exceeded(run.id, run.limits.max_attempts, SILENT)
    if run.outcome == TIMEOUT:
        return took_too_long(run_limits(run).run_timeout or None)
    return None


async def point_back(tx: Tx, thread: ThreadRow, run_id: str) -> None:
    """Set the thread's state to the latest state that stems from neither this run nor a rolled-back run."""
    state = await tx.one(sql.LATEST_WITHOUT, thread_id=thread.id, run_id=run_id, rollback=ROLLBACK)
    if state != thread.checkpoint_id:
        thread.checkpoint_id, thread.state_at = state, max(tx.now, thread.state_at + 1)


async def drop_states(tx: Tx, run_ids: Sequence[str]) -> None:
    """Delete checkpoints and stored steps of runs. Events that refer to them get their data first."""
    await store_run_states(tx, run_ids)
    await tx.execute(sql.DROP_RUN_CHECKPOINTS, ids=list(run_ids))
    await tx.execute(sql.DROP_STEPS, ids=list(run_ids))
    await delete_graph_runs(tx, run_ids)


async def on_stopped(tx: Tx, run_ids: Sequence[str]) -> None:
    """Delete the data that rollbacks undo. The workers of these cancelled runs have stopped."""
    rows = await tx.all(sql.RUN_STATUSES, ids=list(run_ids))
    undone = [row.id for row in rows if row.outcome == ROLLBACK]
    if undone:
        await drop_states(tx, undone)
    for run_id in run_ids:
        tx.hint(STOPPED_CHANNEL, str(tx.ns) + "/" + run_id)


async def find_interrupts(tx: Tx, ends: Sequence[AttemptEnd]) -> dict[str, str]:
    """Return the questions that succeeded phases ask, as JSON by rollout."""
    interrupts: dict[str, str] = {}
    asking: dict[str, tuple[str, str]] = {}
    for end in ends:
        report = end.report
        if end.status != SUCCEEDED or not isinstance(report, RunEndReport):
            continue
        if report.state is not None:
            if report.state.is_unfinished:
                interrupts[end.rollout_id] = report.state.interrupts
        elif report.thread is not None and report.thread.checkpoint_id is not None:
            asking[report.thread.checkpoint_id] = (report.thread.id, end.rollout_id)
    if asking:
        threads = [thread_id for thread_id, _ in asking.values()]
        for row in await tx.all(sql.NEXT_OF, thread_ids=threads, ids=list(asking)):
            if row.next != NOTHING_NEXT:
                _, rollout_id = asking[row.id]
                interrupts[rollout_id] = row.interrupts
    return interrupts


RUN_KIND = RolloutKind(RUN, on_ended=settle_runs, on_stopped=on_stopped, final=True, counted=True)
PHASE_KIND = RolloutKind(PHASE, on_stopped=on_stopped, final=True, counted=True)
"""Kind without `on_ends`: `perdure.runtime.phases.build_phase_kind` adds it, as it calls several domains."""
