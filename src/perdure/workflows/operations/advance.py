"""Advance runs after the end of a phase, the answer of a person, or the loss of a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from perdure.approvals.model import Decision
from perdure.executions.model import FATAL, RELEASED, SOFT, PhaseStarter, get_outcome
from perdure.executions.operations import EndedAttempt, EndedPhase
from perdure.kernel.storage.port import Tx
from perdure.rollouts.model import CANCELLED, SUCCEEDED, TIMEOUT, UNRESPONSIVE, AttemptEnd, RolloutEnds
from perdure.workflows import sql
from perdure.workflows.model import LIVE, MAX_RESTARTS, WAITING, PhaseEnd, parse_node
from perdure.workflows.operations.runs import build_works, lock_runs
from perdure.workflows.operations.saving import save_all
from perdure.workflows.operations.work import RunWork
from perdure.workflows.rows import WorkflowRunRow
from perdure.workflows.steps import decode_state, format_question, remember

NOT_AWAITED: Final = "its run no longer waited for it"
REMEMBERED: Final = 16
"""Maximum number of lost workers in the row of a run."""


# --- the end of a phase -----------------------------------------------------------------------------------


async def lock_parents(tx: Tx, ends: RolloutEnds) -> list[WorkflowRunRow]:
    """Lock the runs of ended phases and attempts, before rows that come later in the order of locks."""
    parents = {*(end.parent for end in ends.attempts), *(end.parent for end in ends.rollouts)}
    return await lock_runs(tx, [parent for parent in parents if parent is not None])


async def advance_runs(
    tx: Tx,
    runs: Sequence[WorkflowRunRow],
    attempts: Sequence[EndedAttempt],
    ended: Sequence[EndedPhase],
    phases: PhaseStarter,
) -> None:
    """Count ended attempts in their locked runs, and advance the runs with ended phases."""
    locked = {run.id: run for run in runs}
    counted = _count_attempts(locked, attempts, tx.now)
    given_up = [run.id for run in counted.values() if run.status in LIVE and run.restart_count > MAX_RESTARTS]
    parts = {phase.end.rollout_id: phase for phase in ended if phase.end.parent in locked}
    advancing = sorted({*given_up, *(str(phase.end.parent) for phase in parts.values())})
    works = await build_works(tx, [locked[run_id] for run_id in advancing], phases)
    changed = {run_id: works[run_id] for run_id in given_up}
    for work in changed.values():
        await work.stop(
            "failed",
            f"{work.run.restart_count} workers were lost while they executed phases of this run; "
            f"it is given up after {MAX_RESTARTS}",
        )
    if parts:
        changed |= await _end_phases(tx, works, parts)
    await save_all(tx, list(changed.values()))
    await tx.defer(sql.MOVE_RUNS.of([run for run in counted.values() if run.id not in changed]))


def _count_attempts(
    runs: Mapping[str, WorkflowRunRow], attempts: Sequence[EndedAttempt], now: int
) -> dict[str, WorkflowRunRow]:
    """Add the usage of attempts to their runs, and count lost workers. Return these runs."""
    counted: dict[str, WorkflowRunRow] = {}
    for attempt in attempts:
        end = attempt.end
        run = runs.get(end.parent or "")
        if run is None:
            continue
        counted[run.id] = run
        _add(run, attempt)
        # The loss of a worker counts only if the run still waits for its phase.
        is_awaited = run.status in LIVE and end.rollout_status != CANCELLED
        if end.status == UNRESPONSIVE and is_awaited:
            _lose(run, end, now)
    return counted


def _add(run: WorkflowRunRow, attempt: EndedAttempt) -> None:
    """Add the usage of an attempt."""
    end, execution = attempt.end, attempt.execution
    if execution is None:
        return
    run.total_cost_usd += execution.cost_usd or 0.0
    run.total_tokens += execution.tokens
    run.turns += execution.turns or 0
    stop_reason = attempt.report.stop_reason or (RELEASED if end.reason == RELEASED else None)
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


async def _end_phases(
    tx: Tx, works: Mapping[str, RunWork], ended: Mapping[str, EndedPhase]
) -> dict[str, RunWork]:
    """Advance the runs of ended phases, given by rollout. Return the changed runs.

    If no node waits for a phase, its end changes nothing and its execution counts as failed: a retry of the
    run executes the phase again.
    """
    strays = dict(ended)
    moved: dict[str, RunWork] = {}
    for row in await tx.all(sql.NODES_OF_ROLLOUTS, ids=sorted(ended)):
        work = works.get(row.run_id)
        if work is None or not work.is_live:
            continue
        work.board.add([row])
        node, phase = work.board.nodes[row.key], strays.pop(row.rollout_id or "")
        if _is_interrupted(phase):
            state = decode_state(node)
            state.thread_id = phase.end.line
            remember(node, state)
        await work.phase_ended(node, _build_phase_end(phase))
        moved[work.run.id] = work
    for phase in strays.values():
        if phase.end.status == SUCCEEDED:
            work = works[str(phase.end.parent)]
            work.reject(None if phase.execution is None else phase.execution.id, NOT_AWAITED)
            moved[work.run.id] = work
    for work in moved.values():
        await work.go_on()
    return moved


def _is_interrupted(phase: EndedPhase) -> bool:
    return phase.end.status == SUCCEEDED and phase.interrupts is not None


def _build_phase_end(phase: EndedPhase) -> PhaseEnd:
    """Build the end of a phase's execution from the reports of its worker and the watchdog."""
    end, report, execution = phase.end, phase.report, phase.execution
    success, interrupted = end.status == SUCCEEDED, _is_interrupted(phase)
    # Only a failure that the agent reports is soft; a crash, a lost worker or a timeout is not.
    lapsed = not success and end.outcome in (TIMEOUT, UNRESPONSIVE)
    return PhaseEnd(
        rollout_id=end.rollout_id,
        success=success,
        output=format_question(phase.interrupts or "") if interrupted else report.output or "",
        error=phase.error,
        stop_reason=FATAL if lapsed and report.stop_reason in SOFT else report.stop_reason,
        execution_id=None if execution is None else execution.id,
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
