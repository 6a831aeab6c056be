"""Reads of attempts for a comparison, and of the spans of these attempts."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.diagnostics import sql
from perdure.diagnostics.comparison import MOST_SPANS, ComparisonSide
from perdure.diagnostics.model import DiagnosedAttemptRow, DiagnosedRolloutRow
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Tx
from perdure.rollouts.operations.queries import refuse_deleted, shared_parts
from perdure.spans.rows import SpanRecordRow
from perdure.traces.outline import SpanOutlineRow


async def find(
    tx: Tx, rollout_id: str, left: str | None, right: str | None
) -> tuple[ComparisonSide, ComparisonSide]:
    """Return two attempts of a rollout, by id or number, with the outlines of their first spans."""
    rollout = await tx.one(sql.GET_ROLLOUT, id=rollout_id)
    if rollout is None:
        raise NotFound(f"Rollout {rollout_id} not found")
    await refuse_deleted(tx, rollout_id)
    one = await _find_side(tx, rollout_id, left, max(rollout.attempts - 1, 1))
    other = await _find_side(tx, rollout_id, right, rollout.attempts)
    return await _with_spans(tx, rollout, one), await _with_spans(tx, rollout, other)


async def _find_side(tx: Tx, rollout_id: str, wanted: str | None, otherwise: int) -> DiagnosedAttemptRow:
    number = otherwise if wanted is None else _parse_number(wanted)
    row = await tx.one(sql.SIDE_BY_NUMBER, rollout_id=rollout_id, sequence_id=number)
    if wanted is not None and number == 0:
        row = await tx.one(sql.SIDE_BY_ID, rollout_id=rollout_id, id=wanted)
    if row is None:
        raise NotFound(f"Rollout {rollout_id} has no attempt {wanted or otherwise}")
    return row


def _parse_number(text: str) -> int:
    """Return the number of an attempt; 0 if the text is an id."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


async def _with_spans(tx: Tx, rollout: DiagnosedRolloutRow, attempt: DiagnosedAttemptRow) -> ComparisonSide:
    terms = {"born": rollout.start_time, "rollout_id": rollout.id, "attempt_id": attempt.id}
    rows = await tx.all(sql.OUTLINES, **terms, n=MOST_SPANS + 1)
    spans = sorted(rows[:MOST_SPANS], key=lambda row: (row.start_ns or 0, row.sequence_id, row.ordinal))
    return ComparisonSide(attempt, spans, len(rows) > MOST_SPANS)


async def read_spans(
    tx: Tx, rollout_id: str, wanted: Sequence[SpanOutlineRow]
) -> tuple[list[SpanRecordRow], dict[str, bytes]]:
    """Return the contents of spans and the parts that spans share."""
    ids = sorted({span.span_id for span in wanted})
    rows = [] if not ids else await tx.all(sql.SPANS_OF, rollout_id=rollout_id, ids=ids)
    named = {(span.attempt_id, span.span_id) for span in wanted}
    rows = [row for row in rows if (row.attempt_id, row.span_id) in named]
    return rows, dict(await shared_parts(tx, rows))
