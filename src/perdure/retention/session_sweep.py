"""Sweep of session logs that are too old.

A session is kept while an open run may use it: a run that writes to it, a workflow run whose phase wrote to
it, or a chat turn that continues it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from perdure.eventlog.port import EventLog, LogInfo, default_session_id, hint_key
from perdure.eventlog.writing import KIND
from perdure.kernel import changes
from perdure.kernel.storage.port import Storage, Tx
from perdure.memory.operations.feeds import forget_feeds
from perdure.retention import sql
from perdure.retention.walking import Budget, SweepResult
from perdure.service.namespaces import list_namespaces

FOUND_SESSIONS = 1000
RUNS_AT_ONCE = 1000
UNNAMED_SECONDS = 3600.0
"""Keep unreferenced content this long, because content is written before the line that refers to it."""


async def open_sessions(tx: Tx) -> set[str]:
    """Return the sessions that open runs and open workflow runs of the namespace may need."""
    sessions: set[str] = set()
    for run in await tx.all(sql.SESSIONS_OF_RUNS):
        sessions |= {default_session_id(run.id), default_session_id(run.thread_id)}
        sessions |= {id for id in (run.session_id, run.agent_session_id) if id is not None}
    open_runs = await tx.all(sql.OPEN_WORKFLOW_RUNS)
    for start in range(0, len(open_runs), RUNS_AT_ONCE):
        some = open_runs[start : start + RUNS_AT_ONCE]
        sessions.update(await tx.all(sql.SESSIONS_OF_WORKFLOWS, ids=some))
    return sessions


@dataclass(frozen=True, slots=True)
class SessionKind:
    """Sessions of a log. Unreferenced content is deleted after each sweep that deleted sessions. It is also
    deleted after the first sweep of a process, because an earlier process may have stopped midway."""

    name: str
    seconds: float | None
    log: EventLog
    cleaned: set[int]
    """Namespaces in which this process has deleted unreferenced content."""

    async def sweep(self, storage: Storage, budget: Budget) -> SweepResult:
        age = self.seconds or 0.0
        total = 0
        for ns in sorted(await storage.read(list_namespaces)):
            before = total
            async for info in self._list_due(storage, ns):
                if budget.is_spent:
                    return SweepResult(total, complete=False)
                sources = [hint_key(0, log.name) for log in await self.log.sub_agents(ns, info.name)]
                if await self.log.remove(ns, info.name, age):
                    await storage.background(forget_feeds, [hint_key(0, info.name), *sources], ns=ns)
                    changes.publish(storage.signals, ns, KIND, info.name.session_id, "deleted")
                    total += 1
            if total > before or ns not in self.cleaned:
                await self.log.drop_blobs(ns, max(age, UNNAMED_SECONDS))
                self.cleaned.add(ns)
        return SweepResult(total)

    async def count(self, storage: Storage, budget: Budget) -> SweepResult:
        total = 0
        for ns in sorted(await storage.read(list_namespaces)):
            async for _ in self._list_due(storage, ns):
                total += 1
        return SweepResult(total)

    async def _list_due(self, storage: Storage, ns: int) -> AsyncIterator[LogInfo]:
        last: LogInfo | None = None
        while page := await self.log.idle(ns, self.seconds or 0.0, last, FOUND_SESSIONS):
            kept = await storage.read(open_sessions, ns=ns)
            for info in page:
                if info.name.session_id not in kept:
                    yield info
            last = page[-1]
