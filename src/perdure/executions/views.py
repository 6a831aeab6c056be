"""Convert rows of executions to records, keys of lists, and statistics without gaps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec import structs

from perdure.executions.model import OUTCOMES
from perdure.executions.operations import DAY, HOUR
from perdure.executions.records import Bucket, ChatThread, Execution, ExecutionDetail, ExecutionFigures
from perdure.executions.rows import ChatRow, ExecutionCursor, ExecutionRow, OpenCount, SumRow, WholeExecution
from perdure.kernel.clock import to_iso, to_iso_or_none
from perdure.kernel.pages import Keyset

F = TypeVar("F", bound=ExecutionFigures)

_NEWEST: Final = ExecutionCursor(2**62, "")
EXECUTIONS: Final = Keyset[ExecutionRow, ExecutionCursor](
    "executions", _NEWEST, lambda row: (row.started_at, row.id)
)
OF_WORKFLOW_RUN: Final = Keyset[ExecutionRow, ExecutionCursor](
    "executions of a workflow run", ExecutionCursor(0, ""), EXECUTIONS.key
)
CHATS: Final = Keyset[ChatRow, ExecutionCursor]("chats", _NEWEST, lambda row: (row.last_at, row.trigger_id))
MAX_EXCERPT: Final = 1000
_SUMS: Final = (
    "turns",
    "duration_ms",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
_SAME: Final = (
    "trigger_type",
    "trigger_id",
    "skill",
    "label",
    "repo",
    "issue_number",
    "workflow_run_id",
    "rollout_id",
    "attempt_id",
    "stop_reason",
    "error",
    "turns",
    "duration_ms",
    "api_duration_ms",
    "session_id",
    "cost_usd",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
"""Fields of a record that are columns of its row."""


def row_to_execution(row: ExecutionRow) -> Execution:
    """Convert a row to the record of an execution."""
    return Execution(
        execution_id=row.id,
        started_at=to_iso(row.started_at),
        finished_at=to_iso_or_none(row.finished_at),
        success=None if row.success is None else bool(row.success),
        **{name: getattr(row, name) for name in _SAME},
    )


def row_to_execution_detail(row: WholeExecution) -> ExecutionDetail:
    """Convert a row to the record of an execution with its output."""
    return ExecutionDetail(**structs.asdict(row_to_execution(row)), output_text=row.output_text)


def row_to_chat(row: ChatRow, texts: Mapping[str, str]) -> ChatThread:
    """Convert a row to the record of a chat; `texts` are outputs by execution id."""
    text = texts.get(row.last_execution_id)
    return ChatThread(
        trigger_id=row.trigger_id,
        first_at=to_iso(row.first_at),
        last_at=to_iso(row.last_at),
        turns=row.turns,
        cost_usd=row.cost_usd,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        last_execution_id=row.last_execution_id,
        last_text=None if text is None else text[:MAX_EXCERPT],
    )


# --- statistics -------------------------------------------------------------------------------------------


def add(figures: ExecutionFigures, row: SumRow) -> None:
    """Add a sum to figures."""
    total = int(row.total)
    figures.total += total
    if row.outcome in OUTCOMES:
        setattr(figures, row.outcome, getattr(figures, row.outcome) + total)
    for name in _SUMS:
        setattr(figures, name, getattr(figures, name) + int(getattr(row, name)))
    figures.cost_usd += float(row.cost_usd)


def sum_figures(rows: Iterable[SumRow], running: int = 0) -> ExecutionFigures:
    """Sum all rows, and add executions that have not ended."""
    figures = ExecutionFigures(total=running)
    for row in rows:
        add(figures, row)
    return figures


def by_name(rows: Iterable[SumRow]) -> dict[str, ExecutionFigures]:
    """Sum rows by name."""
    figures: dict[str, ExecutionFigures] = {}
    for row in rows:
        add(figures.setdefault(row.name, ExecutionFigures()), row)
    return figures


def buckets(
    rows: Sequence[SumRow], running: Sequence[OpenCount], *, first: int, last: int, size: int
) -> list[Bucket]:
    """Return the figures of every hour or day from `first` to `last`, in order and without gaps."""
    by_time = {at: Bucket(at=_key(at, size)) for at in range(first, last + 1, size)}
    for row in rows:
        bucket = by_time.get(row.at - row.at % size)
        if bucket is not None:
            add(bucket, row)
    for open_count in running:
        at = open_count.hour * HOUR
        bucket = by_time.get(at - at % size)
        if bucket is not None:
            bucket.total += open_count.total
    return list(by_time.values())


def _key(at: int, size: int) -> str:
    """Format a time: `2026-11-03T14` for an hour, `2026-11-03` for a day."""
    return to_iso(at)[: 10 if size == DAY else 13]
