"""Exports: the rows of a kind of data, in pages by their key, as they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from perdure.approvals.tables import APPROVALS
from perdure.executions.tables import EXECUTIONS
from perdure.jobs.tables import JOBS
from perdure.kernel.clock import to_seconds
from perdure.kernel.codec import decode_json
from perdure.kernel.storage.dialect import Statement, statement
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
"""How the names of columns end that hold times."""
JSON_COLUMNS = frozenset(
    {"config", "metadata", "input", "error", "payload", "result", "context", "scratch", "node_statuses"}
)
"""Columns with JSON; what is no JSON in them stays a text."""
LEFT_OUT = frozenset({"ns", "webhook", "idempotency_key", "waiting_key"})
"""Columns that are not exported; a webhook may hold credentials."""


class Exported(NamedTuple):
    """A kind of data: its table, the column with the time of its rows, and that with their status, if any."""

    table: Table
    time: str
    status: str | None = None


_SOURCES: Mapping[ExportKind, Exported] = {
    "rollouts": Exported(ROLLOUTS, "start_time", "status"),
    "runs": Exported(RUNS, "created_at"),
    "threads": Exported(THREADS, "created_at", "status"),
    "workflow_runs": Exported(WORKFLOW_RUNS, "started_at", "status"),
    "approvals": Exported(APPROVALS, "created_at", "status"),
    "executions": Exported(EXECUTIONS, "started_at"),
    "schedules": Exported(SCHEDULES, "created_at"),
    "memory_events": Exported(EVENTS, "received_at"),
    "jobs": Exported(JOBS, "created_at"),
    "effects": Exported(OUTBOX, "created_at", "status"),
}


def _page(source: Exported, status: str | None = None) -> Statement[Row]:
    """A page of a kind, in the order of its ids, which are the key."""
    words = ["SELECT", ", ".join(_columns(source)), "FROM", source.table.name]
    words += ["WHERE ns = :ns AND id > :after AND", source.time, ">= :since"]
    if status is not None:
        words += ["AND", status, "= :status"]
    return statement(" ".join([*words, "ORDER BY id LIMIT :n"]))


def _columns(source: Exported) -> list[str]:
    return [name for name in source.table.names if name not in LEFT_OUT]


_PAGES = {kind: _page(source) for kind, source in _SOURCES.items()}
_IN_STATUS = {kind: _page(source, source.status) for kind, source in _SOURCES.items() if source.status}


def has_status(kind: ExportKind) -> bool:
    """Whether rows of a kind have a status to choose by."""
    return _SOURCES[kind].status is not None


async def read_page(
    tx: Tx, kind: ExportKind, after: str, since: int, status: str | None, limit: int
) -> list[tuple[Any, ...]]:
    """The next rows of a kind after an id."""
    values: dict[str, Any] = {"after": after, "since": since, "n": limit}
    if status is None:
        return [tuple(row) for row in await tx.all(_PAGES[kind], **values)]
    return [tuple(row) for row in await tx.all(_IN_STATUS[kind], **values, status=status)]


def record_of(kind: ExportKind, row: tuple[Any, ...]) -> dict[str, Any]:
    """A row by the names of its columns, with times in epoch seconds and JSON decoded."""
    return {name: _shown(name, value) for name, value in zip(_columns(_SOURCES[kind]), row, strict=True)}


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, int) and name.endswith(MICROS):
        return to_seconds(value)
    if isinstance(value, str) and name in JSON_COLUMNS:
        try:
            return decode_json(value)
        except ValueError:
            return value
    return value.hex() if isinstance(value, bytes) else value
