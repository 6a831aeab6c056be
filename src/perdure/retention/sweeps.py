"""Kinds of data that are deleted by age.

No kind contains data that an open run needs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from perdure.eventlog.port import EventLog
from perdure.jobs import operations as jobs
from perdure.kernel.retention import Retention
from perdure.kernel.storage.dialect import Statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.outbox import operations as outbox
from perdure.outbox.model import DEAD, DELIVERED
from perdure.retention import sql
from perdure.retention.memory_walks import MEMORY
from perdure.retention.rollout_walks import ROLLOUTS, RUNS, SPANS
from perdure.retention.session_sweep import SessionKind
from perdure.retention.thread_walks import MESSAGING, SINGLE_THREADS, THREADS
from perdure.retention.walking import Chunk, ChunkedKind, RetainedKind, WalkedKind
from perdure.retention.workflow_walks import WORKFLOW_RUNS
from perdure.service.audit import trim_audit
from perdure.service.idempotency import trim_keys
from perdure.service.tables import SYSTEM
from perdure.statistics import operations as statistics
from perdure.statistics import sql as statistics_sql
from perdure.threads.operations import remove


async def _count(tx: Tx, counted: Statement[int], age: int, values: dict[str, Any]) -> int:
    return await tx.one(counted, before=tx.now - age, **values) or 0


def _counting(counted: Statement[int], **values: Any) -> Chunk:
    async def count(storage: Storage, age: int) -> int:
        return await storage.read(_count, counted, age, values)

    return count


def _deleting(operation: Any, *rest: Any, ns: int | None = None) -> Chunk:
    async def delete(storage: Storage, age: int) -> int:
        return int(await storage.background(operation, age, *rest, ns=ns))

    return delete


def build_kinds(retention: Retention, log: EventLog, cleaned: set[int]) -> list[RetainedKind]:
    """Return every kind of data that is deleted by age, with its age.

    Kinds come before the kinds that they keep alive. `SessionKind` uses `cleaned` as its memory.
    """
    system = partial(_deleting, ns=SYSTEM)
    effects = partial(_counting, sql.OLD_EFFECTS)
    runs = retention.threads if retention.runs is None else retention.runs
    return [
        ChunkedKind("audit", retention.audit, _counting(sql.OLD_AUDIT), system(trim_audit)),
        ChunkedKind("keys", retention.keys, _counting(sql.OLD_KEYS), system(trim_keys)),
        ChunkedKind(
            "delivered", retention.delivered, effects(status=DELIVERED), _deleting(outbox.trim, DELIVERED)
        ),
        ChunkedKind("dead", retention.dead, effects(status=DEAD), _deleting(outbox.trim, DEAD)),
        ChunkedKind("jobs", retention.jobs, _counting(sql.OLD_JOBS), _deleting(jobs.remove_ended)),
        ChunkedKind(
            "statistics",
            retention.statistics,
            _counting(statistics_sql.OLD_MINUTES),
            _deleting(statistics.trim),
        ),
        ChunkedKind(
            "usage", retention.usage, _counting(statistics_sql.OLD_HOURS), _deleting(statistics.trim_hours)
        ),
        WalkedKind("spans", retention.spans, SPANS),
        WalkedKind("rollouts", retention.rollouts, ROLLOUTS),
        WalkedKind("workflow_runs", retention.workflow_runs, WORKFLOW_RUNS),
        WalkedKind("messaging", retention.messaging, MESSAGING),
        WalkedKind("threads", retention.threads, THREADS),
        WalkedKind("temporary", retention.temporary, SINGLE_THREADS),
        ChunkedKind("removed", retention.removed, _counting(sql.OLD_REMOVED), _deleting(remove.purge)),
        WalkedKind("runs", runs, RUNS),
        SessionKind("sessions", retention.sessions, log, cleaned),
        WalkedKind("memory", retention.memory, MEMORY),
    ]
