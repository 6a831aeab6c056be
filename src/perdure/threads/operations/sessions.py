"""Which session a run writes to. The lines themselves go to the event log."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.errors import Fenced
from perdure.kernel.storage.port import Tx
from perdure.threads import sql
from perdure.threads.operations.execute import lost_lease
from perdure.threads.rows import LineHolder, RunSession
from perdure.threads.work import SessionLines


async def enter_sessions(tx: Tx, calls: Sequence[SessionLines]) -> list[Fenced | None]:
    """Store which session each run writes to; refuse attempts that no longer hold their run.

    A cancelled attempt holds its run until it has confirmed the stop: what it said before is logged.
    """
    lines = sorted({call.held.thread_id for call in calls})
    holders = {row.line: row for row in await tx.all(sql.LOCK_HOLDERS, names=lines)}
    runs = sorted({call.held.run_id for call in calls})
    known = {row.id: row.session_id for row in await tx.all(sql.GET_SESSIONS, ids=runs)}
    answers: list[Fenced | None] = []
    changed: dict[str, RunSession] = {}
    for call in calls:
        held = call.held
        holder = LineHolder(held.thread_id, held.run_id, held.attempt_id)
        if holders.get(held.thread_id) != holder or held.run_id not in known:
            answers.append(lost_lease(held))
            continue
        if known[held.run_id] != call.session_id:
            known[held.run_id] = call.session_id
            changed[held.run_id] = RunSession(held.run_id, call.session_id)
        answers.append(None)
    await tx.write(sql.SET_SESSIONS.of([*changed.values()]))
    return answers
