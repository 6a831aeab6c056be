"""Operations on the sessions and the usage of attempts. Session lines go to the event log."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.executions.model import PHASE
from perdure.executions.operations import ExecutionProgress, ExecutionUsage, record_progress
from perdure.kernel.errors import Fenced
from perdure.kernel.storage.port import Tx
from perdure.threads import sql
from perdure.threads.operations.execute import HasLease, lost_lease
from perdure.threads.rows import RunLineHolder, RunSession
from perdure.threads.work import Lease, SessionLines, UsageReport


async def enter_sessions(tx: Tx, calls: Sequence[SessionLines]) -> list[Fenced | None]:
    """Store which session each run writes to; refuse attempts that no longer hold their run.

    A cancelled attempt holds its run until it confirms the stop, so its last lines are logged too.
    """
    holders = await _holders(tx, calls)
    runs = sorted({call.held.run_id for call in calls})
    runs_by_id = {row.id: row for row in await tx.all(sql.GET_SESSIONS, ids=runs)}
    answers: list[Fenced | None] = []
    changed: dict[str, RunSession] = {}
    phases: list[ExecutionProgress] = []
    for call in calls:
        held, run = call.held, runs_by_id.get(call.held.run_id)
        if run is None or not _holds(held, holders):
            answers.append(lost_lease(held))
            continue
        if run.session_id != call.session_id:
            runs_by_id[held.run_id] = run._replace(session_id=call.session_id)
            changed[held.run_id] = RunSession(held.run_id, call.session_id)
            if run.kind == PHASE:
                phases.append(_progress(held, call.session_id))
        answers.append(None)
    await tx.write(sql.SET_SESSIONS.of([*changed.values()]))
    if phases:
        await record_progress(tx, phases)
    return answers


async def _holders(tx: Tx, calls: Sequence[HasLease]) -> dict[str, RunLineHolder]:
    """Lock the lines of these calls, and return their holders."""
    lines = sorted({call.held.thread_id for call in calls})
    return {row.line: row for row in await tx.all(sql.LOCK_HOLDERS, names=lines)}


def _holds(held: Lease, holders: dict[str, RunLineHolder]) -> bool:
    return holders.get(held.thread_id) == RunLineHolder(held.thread_id, held.run_id, held.attempt_id)


def _progress(held: Lease, session_id: str, usage: ExecutionUsage | None = None) -> ExecutionProgress:
    return ExecutionProgress(
        rollout_id=held.run_id,
        attempt_id=held.attempt_id,
        session_id=session_id,
        usage=usage or ExecutionUsage(),
    )


async def record_usage(tx: Tx, reports: Sequence[UsageReport]) -> list[Fenced | None]:
    """Store the usage of phases' attempts so far; refuse attempts that no longer hold their phase."""
    holders = await _holders(tx, reports)
    held = [report for report in reports if _holds(report.held, holders)]
    await record_progress(tx, [_progress(report.held, report.session_id, _usage(report)) for report in held])
    return [None if _holds(report.held, holders) else lost_lease(report.held) for report in reports]


def _usage(report: UsageReport) -> ExecutionUsage:
    return ExecutionUsage(**{name: getattr(report, name) for name in ExecutionUsage.__struct_fields__})
