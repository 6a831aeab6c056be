"""The index that each statement of retention goes by, on filled tables: none reads a large one whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.retention.support import EVERYTHING
from tests.support.plans import SMALL, Subject, plans_of, row_of

from perdure.approvals import tables as approval_tables
from perdure.eventlog import sql as log_sql
from perdure.eventlog import tables as log_tables
from perdure.eventlog.table_log import TableEventLog
from perdure.executions import tables as execution_tables
from perdure.kernel.clock import MICROS
from perdure.kernel.retention import Retention
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.schema import Table
from perdure.memory import sql as memory_sql
from perdure.memory import tables as memory_tables
from perdure.memory.calendar import day_id, get_parent_id, segment_id
from perdure.memory.model import build_document_range
from perdure.messaging import sql as messaging_sql
from perdure.messaging import tables as messaging_tables
from perdure.retention import sql
from perdure.retention.service import Upkeep
from perdure.rollouts import removal_sql
from perdure.rollouts import sql as rollout_sql
from perdure.rollouts import tables as rollout_tables
from perdure.runtime.stores import open_store
from perdure.schedules import tables as schedule_tables
from perdure.spans import tables as span_tables
from perdure.streams import sql as stream_sql
from perdure.threads import removal_sql as thread_removal_sql
from perdure.threads import sql as thread_sql
from perdure.threads import tables as thread_tables
from perdure.workflows import removal_sql as workflow_removal_sql
from perdure.workflows import sql as workflow_sql
from perdure.workflows import tables as workflow_tables

ROWS = 20_000
CHUNK = 5_000
OLD = 60
"""How many rows of each kind are too old: a sweep deletes them, so that there are few."""
DAY = 86_400 * MICROS
RETENTION = Retention(
    **{name: 10 * 86_400.0 for name in Retention.__struct_fields__ if getattr(EVERYTHING, name) is not None}
)
EXPECTED = {
    "OLD_ROLLOUTS": {"rollouts_status"},
    "UNUSED": {"rollouts_pkey", "attempts_pkey"},
    "LOCK_UNUSED": {"rollouts_pkey", "attempts_pkey"},
    "HAS_USED_CHILD": {"rollouts_parent"},
    "CHILDREN_OF": {"rollouts_parent"},
    "IN_LINE": {"rollouts_line"},
    "NEXT_WITH_SPANS": set(),
    "COUNT_SPANS_OF": set(),
    "FIRST_SPANS": {"spans_pkey"},
    "DROP_SPANS_UNTIL": {"spans_pkey"},
    "UNCOUNT_SPANS": {"span_counters_pkey"},
    "UNCOUNT_TRACE": {"traces_pkey"},
    "DROP_EMPTY_TRACES": {"traces_pkey", "spans_trace"},
    "DROP_EMPTY_NAMES": {"spans_trace"},
    "PASS_TRACES_ON": {"traces_pkey"},
    "DROP_FREE_LINES": {"rollouts_line"},
    "DROP_COUNTERS": {"span_counters_pkey"},
    "DROP_FIGURES": set(),
    "RUNS_AMONG": {"runs_pkey"},
    "FOLLOWED_AMONG": {"firings_open"},
    "SCHEDULED_THREADS": {"schedules_thread"},
    "OLD_THREADS": {"threads_created"},
    "OLD_RUNS": set(),
    "STARTED_BY": {"workflow_runs_children"},
    "LOCK_TREE": {"workflow_runs_pkey"},
    "ANY_OPEN_EXECUTION": set(),
    "DROP_HISTORY": {"workflow_history_pkey"},
    "DROP_NODES": set(),
    "DROP_RUN": {"workflow_runs_pkey"},
    "OLD_SESSIONS": {"messaging_sessions_recent"},
    "DROP_MESSAGES": set(),
    "NEXT_DAY": {"memory_nodes_level"},
    "NEXT_EVENT": {"memory_events_time"},
    "COUNT_BETWEEN": {"memory_events_time"},
    "LOCK_BETWEEN": {"memory_events_time"},
    "IDLE_LOGS": {"session_logs_updated"},
    "DROP_LINES": {"session_lines_pkey"},
    "SESSIONS_OF_RUNS": {"runs_live"},
    "OPEN_WORKFLOW_RUNS": {"workflow_runs_active"},
    "SESSIONS_OF_WORKFLOWS": set(),
}
LARGE = frozenset(
    {
        "rollouts",
        "attempts",
        "spans",
        "traces",
        "trace_names",
        "span_counters",
        "runs",
        "threads",
        "lines",
        "workflow_runs",
        "workflow_nodes",
        "workflow_history",
        "executions",
        "workflow_approvals",
        "messaging_sessions",
        "messaging_messages",
        "memory_events",
        "memory_nodes",
        "memory_texts",
        "session_logs",
        "session_lines",
        "firings",
        "schedules",
    }
)
SUBJECT = Subject(
    (
        removal_sql,
        sql,
        workflow_removal_sql,
        messaging_sql,
        memory_sql,
        log_sql,
        rollout_sql,
        thread_sql,
        thread_removal_sql,
        workflow_sql,
        stream_sql,
    ),
    LARGE,
    EXPECTED,
    small=SMALL | {"m", "f"},
)

Maker = Callable[[int, int, int], tuple[Any, ...]]


def _began(number: int, now: int) -> int:
    """A few began long ago, the others today."""
    return now - (30 * DAY if number < OLD else DAY // 2) + number


def _kind(number: int) -> str:
    return ("task", "run", "phase")[number % 3]


def _rollout(number: int, ns: int, now: int) -> tuple[Any, ...]:
    began, kind = _began(number, now), _kind(number)
    return row_of(
        rollout_tables.ROLLOUTS,
        ns=ns,
        id=f"ro-{number:08}",
        kind=kind,
        queue="default",
        status="succeeded",
        outcome="success",
        attempts=1,
        start_time=began,
        end_time=began + MICROS,
        line=None if kind == "task" else f"line-{number:08}",
        parent=f"w-{number:08}" if kind == "phase" and number % 2 else None,
        config="{}",
        metadata="{}",
    )


def _attempt(number: int, ns: int, now: int) -> tuple[Any, ...]:
    return row_of(
        rollout_tables.ATTEMPTS,
        ns=ns,
        rollout_id=f"ro-{number:08}",
        sequence_id=1,
        id=f"at-{number:08}",
        status="succeeded",
        kind=_kind(number),
        born=_began(number, now),
    )


def _span(number: int, ns: int, now: int) -> tuple[Any, ...]:
    return row_of(
        span_tables.SPANS,
        ns=ns,
        born=_began(number, now),
        rollout_id=f"ro-{number:08}",
        attempt_id=f"at-{number:08}",
        span_id=f"{number:016x}",
        trace_id=f"{number // 2:032x}",
        name="step",
        status_code="OK",
        format="json",
        body=b"{}",
    )


def _makers() -> Iterator[tuple[Table, Maker]]:
    yield rollout_tables.ROLLOUTS, _rollout
    yield rollout_tables.ATTEMPTS, _attempt
    yield span_tables.SPANS, _span
    yield span_tables.SPAN_COUNTERS, _of(span_tables.SPAN_COUNTERS, "rollout_id", "ro-", spans=1)
    yield (
        span_tables.TRACES,
        lambda number, ns, now: row_of(
            span_tables.TRACES, ns=ns, trace_id=f"{number:032x}", spans=2, rollout_id=f"ro-{number:08}"
        ),
    )
    yield rollout_tables.LINES, _of(rollout_tables.LINES, "line", "line-")
    yield (
        thread_tables.THREADS,
        lambda number, ns, now: row_of(
            thread_tables.THREADS,
            ns=ns,
            id=f"line-{number:08}",
            status="idle",
            rest="idle",
            created_at=_began(number, now),
            updated_at=_began(number, now),
            temporary=2 if number % 3 == 2 else None,
            config="{}",
            metadata="{}",
        ),
    )
    yield (
        thread_tables.RUNS,
        lambda number, ns, now: row_of(
            thread_tables.RUNS,
            ns=ns,
            id=f"ro-{2 * number:08}",
            thread_id=f"line-{2 * number:08}",
            created_at=now,
            live=1 if number % 1000 == 999 else None,
        ),
    )
    yield from _workflow_makers()
    yield from _other_makers()


def _of(table: Table, column: str, prefix: str, **values: Any) -> Maker:
    def make(number: int, ns: int, now: int) -> tuple[Any, ...]:
        return row_of(table, ns=ns, **{column: f"{prefix}{number:08}"}, **values)

    return make


def _workflow_makers() -> Iterator[tuple[Table, Maker]]:
    yield (
        workflow_tables.RUNS,
        lambda number, ns, now: row_of(
            workflow_tables.RUNS,
            ns=ns,
            id=f"w-{number:08}",
            workflow_name="w",
            trigger_id=f"t{number}",
            status="running" if number % 1000 == 999 else "succeeded",
            active=1 if number % 1000 == 999 else None,
            started_at=_began(number, now),
            finished_at=None if number % 1000 == 999 else _began(number, now) + 1,
            parent_run_id=f"w-{number - 1:08}" if number % 10 == 1 else None,
        ),
    )
    yield workflow_tables.NODES, _of(workflow_tables.NODES, "run_id", "w-", node="plan", status="succeeded")
    yield workflow_tables.HISTORY, _of(workflow_tables.HISTORY, "run_id", "w-", seq=1)
    yield (
        execution_tables.EXECUTIONS,
        lambda number, ns, now: row_of(
            execution_tables.EXECUTIONS,
            ns=ns,
            id=f"e-{number:08}",
            trigger_id=f"t{number}",
            started_at=now,
            finished_at=now,
            success=1,
            workflow_run_id=f"w-{number:08}",
            rollout_id=f"ro-{number:08}",
            session_id="s",
        ),
    )
    yield (
        approval_tables.APPROVALS,
        lambda number, ns, now: row_of(
            approval_tables.APPROVALS,
            ns=ns,
            id=f"a-{number:08}",
            workflow_run_id=f"w-{number:08}",
            status="approved",
            created_at=number,
        ),
    )


def _other_makers() -> Iterator[tuple[Table, Maker]]:
    yield (
        messaging_tables.SESSIONS,
        lambda number, ns, now: row_of(
            messaging_tables.SESSIONS,
            ns=ns,
            id=f"m-{number:08}",
            user_id=f"u{number}",
            line=f"line-{number:08}" if number % 3 == 2 and number % 2 == 0 else f"other-{number:08}",
            last_activity_at=_began(number, now),
            active=0,
        ),
    )
    yield (
        messaging_tables.MESSAGES,
        lambda number, ns, now: row_of(
            messaging_tables.MESSAGES, ns=ns, id=number, session_id=f"m-{number:08}"
        ),
    )
    yield (
        memory_tables.EVENTS,
        lambda number, ns, now: row_of(
            memory_tables.EVENTS, ns=ns, id=f"{number:026}", timestamp_ms=_began(number, now) // 1000
        ),
    )
    yield (
        memory_tables.TEXTS,
        lambda number, ns, now: row_of(
            memory_tables.TEXTS,
            ns=ns,
            id=f"{number:026}",
            kind="event",
            timestamp_ms=number,
            place=build_document_range(ns)[0] + number + 1,
        ),
    )
    yield memory_tables.NODES, _node
    yield (
        log_tables.SESSION_LOGS,
        lambda number, ns, now: row_of(
            log_tables.SESSION_LOGS,
            ns=ns,
            project="-app",
            session_id=f"s-{number:08}",
            last_seq=1,
            size=3,
            updated_at=_began(number, now),
        ),
    )
    yield (
        log_tables.SESSION_LINES,
        lambda number, ns, now: row_of(
            log_tables.SESSION_LINES, ns=ns, project="-app", session_id=f"s-{number:08}", seq=1, body="{}"
        ),
    )
    yield (
        schedule_tables.FIRINGS,
        lambda number, ns, now: row_of(
            schedule_tables.FIRINGS,
            ns=ns,
            schedule_id=f"c-{number:08}",
            started_id=f"x-{number:08}",
            open=1 if number % 1000 == 999 else None,
        ),
    )
    yield (
        schedule_tables.SCHEDULES,
        lambda number, ns, now: row_of(
            schedule_tables.SCHEDULES, ns=ns, id=f"c-{number:08}", thread_id=f"daily-{number}"
        ),
    )


def _node(number: int, ns: int, now: int) -> tuple[Any, ...]:
    """A segment of each event; those of the old events have their day, too."""
    ms = _began(number, now) // 1000
    id = segment_id(ms, f"{number:026}") if number else day_id(ms)
    level = 5 if number else 4
    return row_of(
        memory_tables.NODES, ns=ns, id=id, level=level, parent_id=get_parent_id(id), start_ms=ms, end_ms=ms
    )


async def _insert(tx: Tx, table: Table, rows: list[tuple[Any, ...]]) -> None:
    await tx.insert_many(table, rows)


async def _now(tx: Tx) -> int:
    return tx.now


async def test_plans(new_engine_url: str) -> None:
    async with open_store(new_engine_url, watchdog_interval=None) as store:
        ns = await store.rollouts.ns("write")

        async def fill(storage: Storage) -> None:
            now = await storage.read(_now)
            for table, make in _makers():
                for start in range(0, ROWS, CHUNK):
                    rows = [make(number, ns, now) for number in range(start, start + CHUNK)]
                    await storage.run(_insert, table, rows)

        async def sweep(storage: Storage) -> None:
            upkeep = Upkeep(storage, retention=RETENTION, log=TableEventLog(storage))
            report = await upkeep.gc()
            deleted = {each.kind: each.deleted for each in report.items}
            assert report.complete
            names = ("spans", "rollouts", "workflow_runs", "messaging", "threads", "sessions", "memory")
            assert all(deleted[name] for name in names), deleted

        await plans_of(store.storage, new_engine_url, SUBJECT, fill, sweep)
