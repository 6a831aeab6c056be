"""Exports: the stored rows of a kind of data, in pages by their key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from perdure.approvals.tables import APPROVALS
from perdure.executions.tables import EXECUTIONS
from perdure.jobs.tables import JOBS
from perdure.kernel.clock import to_seconds
from perdure.kernel.codec import decode_json
from perdure.kernel.storage.dialect import name_statements
from perdure.kernel.storage.filters import ListField, Listing, SortKey, SortOrder, given, where
from perdure.kernel.storage.port import Row, Tx
from perdure.kernel.storage.schema import Table
from perdure.memory.tables import EVENTS
from perdure.outbox.tables import OUTBOX
from perdure.rollouts.tables import ROLLOUTS
from perdure.schedules.tables import SCHEDULES
from perdure.threads.tables import RUNS, THREADS
from perdure.workflows.tables import RUNS as WORKFLOW_RUNS

ExportKind = Literal[
    "rollouts",
    "runs",
    "threads",
    "workflow_runs",
    "approvals",
    "executions",
    "schedules",
    "memory_events",
    "jobs",
    "effects",
]
KINDS: Sequence[ExportKind] = get_args(ExportKind)
MICROS = ("_at", "_time", "since")
"""Endings of the names of columns with times."""
JSON_COLUMNS = frozenset(
    {"config", "metadata", "input", "error", "payload", "result", "context", "scratch", "node_statuses"}
)
"""Columns with JSON; a value that is not JSON stays text."""
LEFT_OUT = frozenset({"ns", "webhook", "idempotency_key", "waiting_key"})
"""Columns that are not exported; a webhook may contain credentials."""


def _columns(table: Table) -> list[str]:
    return [name for name in table.names if name not in LEFT_OUT]


def _view(table: Table) -> str:
    return ", ".join(_columns(table))


# Rollouts after an id, started at a time or later.
ROLLOUTS_AFTER = Listing(_view(ROLLOUTS), "rollouts WHERE ns = :ns AND id > :after AND start_time >= :since")
# Runs after an id, started at a time or later.
RUNS_AFTER = Listing(_view(RUNS), "runs WHERE ns = :ns AND id > :after AND created_at >= :since")
# Threads after an id, created at a time or later.
THREADS_AFTER = Listing(_view(THREADS), "threads WHERE ns = :ns AND id > :after AND created_at >= :since")
# Workflow runs after an id, started at a time or later.
WORKFLOW_RUNS_AFTER = Listing(
    _view(WORKFLOW_RUNS), "workflow_runs WHERE ns = :ns AND id > :after AND started_at >= :since"
)
# Approvals after an id, created at a time or later.
APPROVALS_AFTER = Listing(
    _view(APPROVALS), "workflow_approvals WHERE ns = :ns AND id > :after AND created_at >= :since"
)
# Executions after an id, started at a time or later.
EXECUTIONS_AFTER = Listing(
    _view(EXECUTIONS), "executions WHERE ns = :ns AND id > :after AND started_at >= :since"
)
# Schedules after an id, created at a time or later.
SCHEDULES_AFTER = Listing(
    _view(SCHEDULES), "schedules WHERE ns = :ns AND id > :after AND created_at >= :since"
)
# Events of memory after an id, at a time or later.
MEMORY_EVENTS_AFTER = Listing(
    _view(EVENTS), "memory_events WHERE ns = :ns AND id > :after AND received_at >= :since"
)
# Jobs after an id, created at a time or later.
JOBS_AFTER = Listing(_view(JOBS), "jobs WHERE ns = :ns AND id > :after AND created_at >= :since")
# Effects after an id, created at a time or later.
EFFECTS_AFTER = Listing(_view(OUTBOX), "outbox WHERE ns = :ns AND id > :after AND created_at >= :since")

name_statements(globals())

ORDER = SortOrder((SortKey("id", "text"),))
STATUS = {"status": ListField("status", "text")}


class Exported(NamedTuple):
    """A kind of data: its table, its list, and the column of its status, if there is one."""

    table: Table
    rows: Listing[Row]
    status: Mapping[str, ListField] = {}


_SOURCES: Mapping[ExportKind, Exported] = {
    "rollouts": Exported(ROLLOUTS, ROLLOUTS_AFTER, STATUS),
    "runs": Exported(RUNS, RUNS_AFTER),
    "threads": Exported(THREADS, THREADS_AFTER, STATUS),
    "workflow_runs": Exported(WORKFLOW_RUNS, WORKFLOW_RUNS_AFTER, STATUS),
    "approvals": Exported(APPROVALS, APPROVALS_AFTER, STATUS),
    "executions": Exported(EXECUTIONS, EXECUTIONS_AFTER),
    "schedules": Exported(SCHEDULES, SCHEDULES_AFTER),
    "memory_events": Exported(EVENTS, MEMORY_EVENTS_AFTER),
    "jobs": Exported(JOBS, JOBS_AFTER),
    "effects": Exported(OUTBOX, EFFECTS_AFTER, STATUS),
}


def has_status(kind: ExportKind) -> bool:
    """Return whether rows of a kind have a status."""
    return bool(_SOURCES[kind].status)


async def read_page(
    tx: Tx, kind: ExportKind, after: str, since: int, status: str | None, limit: int
) -> list[tuple[Any, ...]]:
    """Return the next rows of a kind after an id."""
    source = _SOURCES[kind]
    clause = where(source.status, given(("status", "exact", status)), "and")
    page, values = source.rows.page(clause, ORDER, limit, 0)
    return [tuple(row) for row in await tx.all(page, after=after, since=since, **values)]


def row_to_record(kind: ExportKind, row: tuple[Any, ...]) -> dict[str, Any]:
    """Convert a row to a record by column names, with times in epoch seconds and decoded JSON."""
    return {name: _show(name, value) for name, value in zip(_columns(_SOURCES[kind].table), row, strict=True)}


def _show(name: str, value: Any) -> Any:
    if isinstance(value, int) and name.endswith(MICROS):
        return to_seconds(value)
    if isinstance(value, str) and name in JSON_COLUMNS:
        try:
            return decode_json(value)
        except ValueError:
            return value
    return value.hex() if isinstance(value, bytes) else value
