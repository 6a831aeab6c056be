"""End of an attempt: its run succeeds, fails, is retried, or is released."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.kernel.clock import to_micros
from perdure.kernel.errors import Conflict, Fenced, PerdureError
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import (
    ATTEMPT,
    ENDED,
    FAILED,
    LAPSED,
    LIVE,
    RELEASED,
    SUCCEEDED,
    TIMEOUT,
    Kinds,
    reported,
)
from perdure.rollouts.operations.conditions import NOT_OVERDUE
from perdure.rollouts.operations.report import save_all
from perdure.rollouts.operations.work import AttemptRow, LockedRollouts, RolloutRow
from perdure.rollouts.operations.workers import WorkerChanges
from perdure.service.audit import audit
from perdure.service.conditions import requires
from perdure.streams.model import NewEvent
from perdure.streams.operations import StreamAppend, append
from perdure.threads import sql
from perdure.threads.model import INTERRUPT, PERMANENT, RETRIABLE, RUN_KINDS, STOPPED, exceeded
from perdure.threads.operations.execute import (
    Checked,
    Known,
    build_append,
    known_states,
    lost_lease,
    new_state,
    not_refused,
    taken,
)
from perdure.threads.operations.graphs import (
    Rows,
    Steps,
    ThreadSteps,
    build_rows,
    put_changes,
    stored_in,
    unstored,
    with_shown,
)
from perdure.threads.operations.settle import RunEndReport, load_runs, load_threads
from perdure.threads.operations.shown import Checkpoints, showing_graph, showing_state, stored_before
from perdure.threads.records import Failure
from perdure.threads.rows import RunRow, StateRow, ThreadRow, failure_text
from perdure.threads.work import Finished, Lease, Result

_RETRY = "reported failure, retry"
_NO_RETRY = "reported failure, no retry"


class RunFinish(msgspec.Struct, frozen=True):
    """End of an attempt, with its bodies encoded."""

    held: Lease
    result: Result
    error: Failure | None = None
    retry_after: float | None = None
    checkpoint: Checked | None = None
    events: Sequence[NewEvent] = ()
    steps: Steps | None = None
    permanent: bool = False
    """True to prevent a retry, whatever the limits of the run."""
    output: str | None = None
    """Text output of a phase."""
    stop_reason: str | None = None
    turns: int | None = None
    api_duration_ms: int | None = None


@requires(NOT_OVERDUE)
async def finish_runs(
    tx: Tx, endings: Sequence[RunFinish], kinds: Kinds
) -> list[Finished | Fenced | Conflict]:
    """End attempts. A repeated call changes nothing."""
    finishing = _Finishing(tx, kinds)
    await finishing.load([ending.held for ending in endings])
    finishing.runs = await load_runs(tx, sorted({ending.held.run_id for ending in endings}))
    finishing.known = await known_states(tx, [(ending.held, ending.checkpoint) for ending in endings])
    finishing.stored = await stored_before(
        tx, [(ending.held, unstored(ending.events, ending.steps)) for ending in endings]
    )
    answers = [finishing.end(ending) for ending in endings]
    await finishing.save()
    await audit(tx, "finish_run", not_refused(endings, answers))
    return [answer if isinstance(answer, PerdureError) else finishing.finished(answer) for answer in answers]


async def hand_back(tx: Tx, holders: Sequence[Lease], kinds: Kinds) -> list[str | Fenced]:
    """Release runs that no worker executes: uncharged, ready at once, at their old position."""
    finishing = _Finishing(tx, kinds)
    await finishing.load(holders)
    answers = [finishing.give_back(held) for held in holders]
    await finishing.save()
    given_back = zip(holders, answers, strict=True)
    await audit(
        tx, "release_run", [held.name for held, answer in given_back if not isinstance(answer, Fenced)]
    )
    return answers


class _Finishing:
    """Attempts that end in one transaction."""

    def __init__(self, tx: Tx, kinds: Kinds) -> None:
        self._tx = tx
        self._work = LockedRollouts(tx, kinds)
        self._workers = WorkerChanges(tx, kinds)
        self._threads: dict[str, ThreadRow] = {}
        self.runs: dict[str, RunRow] = {}
        """The runs before their ends."""
        self.known: Known = {}
        """Existing states with the IDs of new states."""
        self.stored: dict[str, Checkpoints] = {}
        """Checkpoints that runs stored earlier and that their last events show."""
        self._states: dict[str, StateRow | None] = {}
        """New state of each thread that gets one, if its values are in memory."""
        self._new: list[StateRow] = []
        self._reports: dict[str, RunEndReport] = {}
        self._updates: list[ThreadSteps] = []
        self._graph_rows = Rows([], [])
        self._appends: list[StreamAppend] = []

    async def load(self, holders: Sequence[Lease]) -> None:
        await self._work.load([held.run_id for held in holders], RUN_KINDS, lined=True)
        self._threads = await load_threads(self._tx, [held.thread_id for held in holders], lock=True)

    def _holder(self, held: Lease) -> tuple[RolloutRow, AttemptRow] | None:
        """Return the run and attempt of a lease that still holds, otherwise None."""
        rollout = self._work.rollouts.get(held.run_id)
        attempt = self._work.latest(held.run_id) if rollout is not None else None
        if rollout is None or attempt is None or attempt.id != held.attempt_id or attempt.status not in LIVE:
            return None
        return (rollout, attempt) if rollout.line == held.thread_id else None

    def _refusal(self, held: Lease, *, released: bool) -> str | Fenced:
        """Answer a report about an ended attempt: success if the attempt itself reported the end.

        An attempt that released its run may only repeat the release.
        """
        for attempt in self._work.attempts.get(held.run_id, ()):
            has_reported = (
                attempt.id == held.attempt_id and attempt.status not in LIVE and attempt.end_time is not None
            )
            if has_reported and (released or attempt.reason != RELEASED):
                return held.run_id
        return lost_lease(held)

    def end(self, ending: RunFinish) -> str | Fenced | Conflict:
        holder = self._holder(ending.held)
        if holder is None:
            return self._refusal(ending.held, released=ending.result == STOPPED)
        rollout, attempt = holder
        if rollout.status in ENDED:
            if rollout.outcome == INTERRUPT:
                self._keep_steps(ending, attempt)
            self._report(attempt, FAILED, STOPPED)
            self._reports[rollout.id] = _build_report(ending)
            self._work.stopped.append(rollout)
        elif ending.result == STOPPED:
            self._release(rollout, attempt)
        elif ending.checkpoint is not None and self._is_taken(ending.held, ending.checkpoint):
            return taken(ending.held, ending.checkpoint)
        else:
            events = self._keep(ending, attempt)
            self._conclude(msgspec.structs.replace(ending, events=events), rollout, attempt)
        return ending.held.run_id

    def _is_taken(self, held: Lease, state: Checked) -> bool:
        return (held.thread_id, state.checkpoint_id) in self.known

    def give_back(self, held: Lease) -> str | Fenced:
        holder = self._holder(held)
        if holder is None:
            return self._refusal(held, released=True)
        rollout, attempt = holder
        if rollout.status in ENDED:
            self._report(attempt, FAILED, STOPPED)
            self._work.stopped.append(rollout)
        else:
            self._release(rollout, attempt)
        return held.run_id

    def _release(self, rollout: RolloutRow, attempt: AttemptRow) -> None:
        self._work.release(rollout, attempt)
        self._workers.follow(attempt)

    def _report(self, attempt: AttemptRow, status: str, reason: str) -> None:
        attempt.status = ATTEMPT.step(attempt.status, reported(status))
        attempt.end_time, attempt.reason = self._tx.now, reason
        attempt.check_at, attempt.dirty = None, True
        self._workers.follow(attempt)

    def _keep(self, ending: RunFinish, attempt: AttemptRow) -> Sequence[NewEvent]:
        """Store the last state; return the last events, which refer to its stored part."""
        thread = self._threads.get(ending.held.thread_id)
        events = ending.events
        if ending.checkpoint is not None and thread is not None:
            state = new_state(self._tx, thread, ending.checkpoint, ending.held.run_id, attempt.sequence_id)
            self._states[thread.id] = state
            self._new.append(state)
            events = showing_state(events, ending.checkpoint.values, state.id)
            self._keep_steps(ending, attempt)
            return events
        new = self._keep_steps(ending, attempt)
        return showing_graph(events, new | self.stored.get(ending.held.run_id, set()))

    def _keep_steps(self, ending: RunFinish, attempt: AttemptRow) -> Checkpoints:
        """Store the last work of the run's graph; return its checkpoints. Skip a deleted thread."""
        thread = self._threads.get(ending.held.thread_id)
        if ending.steps is None or thread is None or thread.gone_at is not None:
            return set()
        update = ThreadSteps(thread, ending.held.run_id, attempt.sequence_id, ending.steps)
        rows = build_rows(self._tx, [update])
        self._updates.append(update)
        self._graph_rows.new.extend(rows.new)
        self._graph_rows.changed.extend(rows.changed)
        self._states[thread.id] = with_shown(rows.new[-1], ending.steps.states[-1]) if rows.new else None
        return stored_in(ending.steps)

    def _build_end_report(self, ending: RunFinish, failure: Failure | None = None) -> RunEndReport:
        """Build the report of a run that ends here. Its thread is written with the end."""
        thread_id = ending.held.thread_id
        report = _build_report(ending)
        report.failure, report.events = failure, ending.events
        report.before = self.runs.get(ending.held.run_id)
        report.thread, report.state = self._threads.get(thread_id), self._states.get(thread_id)
        return report

    def _conclude(self, ending: RunFinish, rollout: RolloutRow, attempt: AttemptRow) -> None:
        work = self._work
        if ending.error is not None:
            attempt.metadata = failure_text(ending.error)
        if ending.result == "success":
            self._report(attempt, SUCCEEDED, SUCCEEDED)
            self._reports[rollout.id] = self._build_end_report(ending)
            work.move(rollout, reported(SUCCEEDED), SUCCEEDED)
        elif ending.result == RETRIABLE:
            self._report(attempt, FAILED, RETRIABLE)
            self._retry(ending, rollout, attempt)
        else:
            status = TIMEOUT if ending.result == "timeout" else FAILED
            pause = rollout.limits.retry_after
            again = pause is not None and work.tries(attempt) < rollout.limits.max_attempts
            if again and not ending.permanent:
                self._report(attempt, status, TIMEOUT if status in LAPSED else RETRIABLE)
                self._retry(msgspec.structs.replace(ending, retry_after=pause), rollout, attempt)
                return
            self._report(attempt, status, TIMEOUT if status in LAPSED else PERMANENT)
            self._reports[rollout.id] = self._build_end_report(ending, ending.error)
            work.move(rollout, _NO_RETRY, status)

    def _retry(self, ending: RunFinish, rollout: RolloutRow, attempt: AttemptRow) -> None:
        work = self._work
        if work.tries(attempt) < rollout.limits.max_attempts:
            self._reports[rollout.id] = _build_report(ending)
            work.move(rollout, _RETRY, FAILED, delay=to_micros(ending.retry_after or 0.0))
            if ending.events:
                self._appends.append(build_append(ending.held, attempt.sequence_id, ending.events))
        else:
            failure = exceeded(rollout.id, rollout.limits.max_attempts, ending.error)
            self._reports[rollout.id] = self._build_end_report(ending, failure)
            work.move(rollout, _NO_RETRY, FAILED)

    def finished(self, run_id: str) -> Finished:
        report = self._reports.get(run_id)
        if report is None or report.run is None:
            return Finished(run_id)
        thread, state = report.thread, report.state
        is_known = thread is not None and (state is not None or thread.checkpoint_id is None)
        known = (thread, state) if thread is not None and is_known else None
        return Finished(run_id, report.placed, report.run, known)

    async def save(self) -> None:
        """Write states and events, then the end itself."""
        tx = self._tx
        ending = {report.thread.id for report in self._reports.values() if report.thread is not None}
        moved = [self._threads[id] for id in sorted(self._states) if id not in ending]
        await put_changes(tx, self._updates)
        await tx.defer(
            sql.ADD_CHECKPOINTS.of(self._new), *self._graph_rows.writes, sql.MOVE_THREADS.of(moved)
        )
        if self._appends:
            await append(tx, self._appends)
        self._work.reports.update(self._reports)
        await save_all(self._work, self._workers, True)


def _build_report(ending: RunFinish) -> RunEndReport:
    """Build the report of an attempt that ends."""
    error = ending.error
    return RunEndReport(
        output=ending.output,
        stop_reason=ending.stop_reason,
        turns=ending.turns,
        api_duration_ms=ending.api_duration_ms,
        error=None if error is None else error.error + ": " + error.message,
    )
