"""Deletes old rollouts and spans in chunks, with the rows that belong only to deleted rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.kernel import changes
from perdure.kernel.storage.port import Tx
from perdure.rollouts import joining_sql, removal_sql, sql
from perdure.rollouts.model import ENDED, LIVE
from perdure.rollouts.operations.work import ATTEMPTS_TOTAL, BYTES_TOTAL, SPANS_TOTAL, add_counts, add_total
from perdure.rollouts.removal_sql import DroppedSpan, OldRollout, SpanCursor
from perdure.spans.sums import ERROR

FOUND_ROLLOUTS = 1000
"""Page size of old rollouts."""
SPAN_ROWS = 500
"""Maximum number of spans that one transaction deletes."""


class Removal(NamedTuple):
    """Deleted rows of a transaction: rollouts that are gone, rollouts with spans left, number of spans."""

    gone: list[str]
    left: list[str]
    spans: int


async def remove_rollouts(tx: Tx, ids: Sequence[str], kind: str) -> None:
    """Delete rollouts of a kind without spans and lines, and their attempts."""
    counts: dict[tuple[str, str], int] = {}
    for row in await tx.all(sql.LOAD_ROLLOUTS, ids=sorted(ids), kinds=[kind]):
        counts[row.kind, row.status] = counts.get((row.kind, row.status), 0) - 1
    add_total(tx, ATTEMPTS_TOTAL, -await tx.execute(sql.DROP_ATTEMPTS, ids=list(ids)))
    await tx.execute(sql.DROP_ROLLOUTS, ids=list(ids), kind=kind)
    add_counts(tx, counts)


# --- old rollouts and spans -------------------------------------------------------------------------------


async def old_rollouts(tx: Tx, kind: str, status: str, before: int, after: OldRollout) -> list[OldRollout]:
    """Return the next rollouts of a kind and a status that ended before a time, after a cursor."""
    return await tx.all(
        removal_sql.OLD_ROLLOUTS,
        kind=kind,
        status=status,
        before=before,
        start_time=after.start_time,
        id=after.id,
        n=FOUND_ROLLOUTS,
    )


async def unused_rollouts(tx: Tx, ids: Sequence[str], before: int, *, lock: bool = False) -> list[OldRollout]:
    """Return the given rollouts that ended before a time, have no live attempt and hold no line."""
    query = removal_sql.LOCK_UNUSED if lock else removal_sql.UNUSED
    if not ids:
        return []
    return await tx.all(query, ids=sorted(ids), before=before, ended=sorted(ENDED), live=sorted(LIVE))


async def has_used_child(tx: Tx, parents: Sequence[str], before: int) -> bool:
    """Return whether a child of these is executed, holds a line, or has ended since a time."""
    row = await tx.one(
        removal_sql.HAS_USED_CHILD,
        parents=list(parents),
        before=before,
        ended=sorted(ENDED),
        live=sorted(LIVE),
    )
    return row is not None


async def list_children(tx: Tx, parent: str, limit: int) -> list[str]:
    """Return some children of a parent."""
    return await tx.all(removal_sql.CHILDREN_OF, parent=parent, n=limit)


async def in_line(tx: Tx, line: str, limit: int) -> list[str]:
    """Return some rollouts of a line."""
    return await tx.all(removal_sql.IN_LINE, line=line, n=limit)


async def old_spans(tx: Tx, before: int, after: SpanCursor, limit: int) -> list[SpanCursor]:
    """Return the next rollouts with spans that started before a time, after a cursor: one query each."""
    cursors: list[SpanCursor] = []
    while len(cursors) < limit:
        cursor = await tx.one(removal_sql.NEXT_WITH_SPANS, before=before, **after._asdict())
        if cursor is None:
            break
        cursors.append(cursor)
        after = cursor
    return cursors


async def count_spans(tx: Tx, place: SpanCursor) -> int:
    """Return the number of spans of a rollout."""
    return await tx.one(removal_sql.COUNT_SPANS_OF, **place._asdict()) or 0


async def lock_unused(tx: Tx, ids: Sequence[str], before: int) -> tuple[list[OldRollout], list[str]]:
    """Lock the lines of rollouts, and the given rollouts not used since a time; return both."""
    if not ids:
        return [], []
    lines = [row.line for row in await tx.all(sql.LOCK_LINES_OF, ids=sorted(ids))]
    return await unused_rollouts(tx, ids, before, lock=True), lines


# --- deleting ---------------------------------------------------------------------------------------------


async def delete_unused(tx: Tx, rows: Sequence[OldRollout], kind: str, lines: Sequence[str] = ()) -> Removal:
    """Delete locked rollouts of a kind with all their rows, and their lines when the last rollout is gone.

    The spans of a rollout may be left for the next transaction. Statistics keep their usage, including usage
    that has not been added to the hours yet.
    """
    emptied, left, spans = await delete_spans(tx, rows)
    if emptied:
        ids = sorted(emptied)
        await tx.execute(removal_sql.DROP_COUNTERS, ids=ids)
        await tx.execute(removal_sql.DROP_FIGURES, ids=ids)
        await tx.execute(joining_sql.DROP_KEPT_TRACES, ids=ids)
        await tx.execute(joining_sql.DROP_MODEL_CALLS, ids=ids)
        await remove_rollouts(tx, ids, kind)
        await drop_free_lines(tx, lines)
        changes.tell(tx, "rollout", [(id, "deleted") for id in ids])
    return Removal(emptied, left, spans)


async def drop_free_lines(tx: Tx, lines: Sequence[str]) -> None:
    """Delete the given locked lines that have no holder and no rollouts."""
    if lines:
        await tx.execute(removal_sql.DROP_FREE_LINES, names=list(lines))


async def delete_spans(tx: Tx, rows: Sequence[OldRollout], limit: int = SPAN_ROWS) -> Removal:
    """Delete up to `limit` spans of locked rollouts: `gone` are the rollouts without spans now."""
    # The same order of locks as in adding spans: attempts, then counters, then traces.
    await tx.all(sql.LOAD_ATTEMPTS, ids=sorted(row.id for row in rows))
    chosen: dict[OldRollout, list[DroppedSpan]] = {}
    emptied: list[str] = []
    room = limit
    for row in rows:
        spans = []
        if room:
            spans = await tx.all(removal_sql.FIRST_SPANS, born=row.start_time, rollout_id=row.id, n=room)
            if len(spans) < room:
                emptied.append(row.id)
        room -= len(spans)
        if spans:
            chosen[row] = spans
    if chosen:
        await _delete(tx, chosen)
    gone = set(emptied)
    return Removal(emptied, [row.id for row in rows if row.id not in gone], limit - room)


async def _delete(tx: Tx, chosen: dict[OldRollout, list[DroppedSpan]]) -> None:
    traces: dict[str, tuple[int, int]] = {}
    for row, spans in sorted(chosen.items()):
        size = sum(span.size for span in spans)
        await tx.execute(removal_sql.UNCOUNT_SPANS, rollout_id=row.id, spans=len(spans), bytes=size)
        add_total(tx, SPANS_TOTAL, -len(spans))
        add_total(tx, BYTES_TOTAL, -size)
        for span in spans:
            count, errors = traces.get(span.trace_id, (0, 0))
            traces[span.trace_id] = count + 1, errors + (span.status_code == ERROR)
    await tx.execute_many(
        removal_sql.UNCOUNT_TRACE,
        [
            {"trace_id": trace_id, "spans": count, "errors": errors}
            for trace_id, (count, errors) in sorted(traces.items())
        ],
    )
    for row, spans in chosen.items():
        last = spans[-1]
        await tx.execute(
            removal_sql.DROP_SPANS_UNTIL,
            born=row.start_time,
            rollout_id=row.id,
            attempt_id=last.attempt_id,
            span_id=last.span_id,
        )
    ids = sorted(traces)
    for delete in (removal_sql.DROP_EMPTY_TRACES, removal_sql.DROP_EMPTY_NAMES):
        await tx.execute(delete, ids=ids)
    await tx.execute(removal_sql.PASS_TRACES_ON, ids=ids, rollout_ids=[row.id for row in chosen])
    changes.tell(tx, "spans", [(row.id, "deleted") for row in chosen])
