"""Advance runs after the end of a phase, the answer of a person, or the loss of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.approvals.model import Decision
from perdure.executions.model import FATAL, RELEASED, SOFT, PhaseReport, PhaseStarter, get_outcome
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import (
    CANCELLED,
    SUCCEEDED,
    TIMEOUT,
    UNRESPONSIVE,
    AttemptEnd,
    EndedRollout,
    Listener,
)
from perdure.workflows import sql
from perdure.workflows.model import LIVE, MAX_RESTARTS, WAITING, PhaseEnd, parse_node
from perdure.workflows.operations.runs import build_works, load_works, lock_runs
from perdure.workflows.operations.saving import save_all
from perdure.workflows.operations.work import RunWork
from perdure.workflows.rows import WorkflowRunRow
from perdure.workflows.steps import decode_state, format_question, remember

NOT_AWAITED: Final = "its run no longer waited for it"
REMEMBERED: Final = 16
"""Maximum number of lost workers in the row of a run."""


# --- the end of a phase -----------------------------------------------------------------------------------


async def lock_runs_of_phases(tx: Tx, ends: Sequence[AttemptEnd]) -> None:
    """Lock the runs of phases before rows that come later in the order of locks."""
    await lock_runs(tx, [end.parent for end in ends if end.parent is not None])


WORKFLOW_LOCKS: Final = Listener(on_attempt_ended=lock_runs_of_phases)
"""Listener that is registered before the listener of executions."""


def listener(phases: PhaseStarter) -> Listener:
    """Return the listener for the ends of phases. Register it after the listener of executions."""

    async def on_attempt_ended(tx: Tx, ends: Sequence[AttemptEnd]) -> None:
        await count_attempts(tx, ends, phases)

    async def on_ended(tx: Tx, ended: Sequence[EndedRollout]) -> None:
        await end_phases(tx, ended, phases)

    return Listener(on_attempt_ended=on_attempt_ended, on_ended=on_ended)


async def count_attempts(tx: Tx, ends: Sequence[AttemptEnd], phases: PhaseStarter) -> None:
    """Add the usage of attempts to their runs, and count lost workers."""
    mine = [end for end in ends if end.parent is not None]
    runs = {run.id: run for run in await lock_runs(tx, [end.parent or "" for end in mine])}
    for end in mine:
        run = runs.get(end.parent or "")
        if run is None:
            continue
        _add(run, end)
        # The loss of a worker counts only if the run still waits for its phase.
        is_awaited = run.status in LIVE and end.rollout_status != CANCELLED
        if end.status == UNRESPONSIVE and is_awaited:
            _lose(run, end, tx.now)
    given_up = [run for run in runs.values() if run.status in LIVE and run.restart_count > MAX_RESTARTS]
    works = await build_works(tx, given_up, phases)
    for work in works.values():
        await work.stop(
            "failed",
            f"{work.run.restart_count} workers were lost while they executed phases of this run; "
            f"it is given up after {MAX_RESTARTS}",
        )
    await save_all(tx, list(works.values()))
    await tx.write(sql.MOVE_RUNS.of([run for run in runs.values() if run.id not in works]))


def _add(run: WorkflowRunRow, end: AttemptEnd) -> None:
    """Add the usage of an attempt, which the listener of executions has put into its note."""
    report = end.note
    if not isinstance(report, PhaseReport) or report.execution_id is None:
        return
    run.total_cost_usd += report.cost_usd
    run.total_tokens += report.tokens
    run.turns += report.turns or 0
    stop_reason = report.stop_reason or (RELEASED if end.reason == RELEASED else None)
    outcome = get_outcome(end.status == SUCCEEDED, stop_reason)
    setattr(run, outcome, getattr(run, outcome) + 1)


def _lose(run: WorkflowRunRow, end: AttemptEnd, now: int) -> None:
    """Count a lost worker once, even if it held several phases of the run.

    A worker that started another attempt after it was counted has come back, and counts again.
    """
    lost = dict(line.rsplit(" ", 1) for line in (run.lost_workers or "").splitlines())
    worker = (end.worker_id or end.attempt_id).replace("\n", " ")
    if worker in lost and end.start_time <= int(lost[worker]):
        return
    lost.pop(worker, None)
    lost[worker] = str(now)
    latest = list(lost.items())[-REMEMBERED:]
    run.lost_workers = "\n".join(" ".join(pair) for pair in latest)
    run.restart_count += 1


async def end_phases(tx: Tx, ended: Sequence[EndedRollout], phases: PhaseStarter) -> None:
    """Advance runs whose phases have ended.

    A phase that no node waits for changes nothing, and its execution counts as failed: a retry of the run
    executes it again.
    """
    ends = {end.rollout_id: end for end in ended if end.parent is not None}
    if not ends:
        return
    works = await load_works(tx, [end.parent or "" for end in ends.values()], phases)
    moved: dict[str, RunWork] = {}
    for row in await tx.all(sql.NODES_OF_ROLLOUTS, ids=sorted(ends)):
        work = works.get(row.run_id)
        if work is None or not work.is_live:
            continue
        work.board.add([row])
        node, end = work.board.nodes[row.key], ends.pop(row.rollout_id or "")
        how = phase_end(end)
        if how.interrupted:
            state = decode_state(node)
            state.thread_id = end.line
            remember(node, state)
        await work.phase_ended(node, how)
        moved[work.run.id] = work
    for end in ends.values():
        stray = works.get(end.parent or "")
        if stray is not None and end.status == SUCCEEDED and isinstance(end.note, PhaseReport):
            stray.reject(end.note.execution_id, NOT_AWAITED)
            moved[stray.run.id] = stray
    for work in moved.values():
        await work.go_on()
    await save_all(tx, list(moved.values()))


def phase_end(end: EndedRollout) -> PhaseEnd:
    """Build the end of a phase's execution from the reports of its worker and the watchdog."""
    report = end.note if isinstance(end.note, PhaseReport) else PhaseReport()
    success = end.status == SUCCEEDED
    interrupted = success and report.interrupts is not None
    # Only a failure that the agent reports is soft; a crash, a lost worker or a timeout is not.
    lapsed = not success and end.outcome in (TIMEOUT, UNRESPONSIVE)
    return PhaseEnd(
        rollout_id=end.rollout_id,
        success=success,
        output=format_question(report.interrupts or "") if interrupted else report.output or "",
        error=report.error,
        stop_reason=FATAL if lapsed and report.stop_reason in SOFT else report.stop_reason,
        execution_id=report.execution_id,
        interrupted=interrupted,
    )


# --- the answer of a person -------------------------------------------------------------------------------


async def resume_node(
    tx: Tx, run: WorkflowRunRow, node: str, decision: Decision, phases: PhaseStarter
) -> bool:
    """Continue a run after an approval was resolved; its row is locked. Return False if no node waits."""
    key = parse_node(node)
    waiting = await tx.one(sql.GET_NODE, run_id=run.id, node=key.node, item=key.item)
    if run.status not in LIVE or waiting is None or waiting.status != WAITING:
        return False
    if waiting.approval_id != decision.approval_id:
        return False
    work = (await build_works(tx, [run], phases))[run.id]
    work.board.add([waiting])
    await work.resumed(waiting, decision)
    await work.go_on()
    await save_all(tx, [work])
    return True
