"""Walks over rollouts and spans that are too old.

A rollout is kept while a worker executes it, while it holds a line, and while a schedule follows it. The
rollout of a run is kept as long as the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.storage.port import Tx
from perdure.retention import sql
from perdure.retention.walking import Dropped, DueItem, DueItems, Walk
from perdure.rollouts.model import ENDED, KEPT_TRACE, TASK
from perdure.rollouts.operations.remove import (
    FOUND_ROLLOUTS,
    count_spans,
    delete_spans,
    delete_unused,
    lock_unused,
    old_rollouts,
    old_spans,
    unused_rollouts,
)
from perdure.rollouts.removal_sql import OldRollout, SpanCursor
from perdure.threads.model import RUN
from perdure.threads.operations.remove import count_removed, traces_of_removed

CHUNK = 100
"""Number of rollouts that one transaction deletes."""
FOUND_WITH_SPANS = 100


async def needed(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Return the rollouts still needed by a run, or by a schedule that waits for the rollout's end."""
    wanted = list(ids)
    if not wanted:
        return set()
    return {*await tx.all(sql.RUNS_AMONG, ids=wanted), *await tx.all(sql.FOLLOWED_AMONG, ids=wanted)}


async def _find_rollouts(tx: Tx, age: int, place: OldRollout | None, kind: str, status: str) -> DueItems:
    before = tx.now - age
    page = await old_rollouts(tx, kind, status, before, place or OldRollout("", 0))
    ids = [row.id for row in page]
    kept = await needed(tx, ids)
    unused = await unused_rollouts(tx, [id for id in ids if id not in kept], before)
    return [DueItem(row.id) for row in unused], page[-1] if len(page) == FOUND_ROLLOUTS else None


async def _drop_rollouts(tx: Tx, age: int, ids: Sequence[str], kind: str, _: str) -> Dropped:
    rows, lines = await lock_unused(tx, ids[:CHUNK], tx.now - age)
    kept = await needed(tx, [row.id for row in rows])
    unused = [row for row in rows if row.id not in kept]
    traces = await traces_of_removed(tx, [row.id for row in unused]) if kind == RUN else []
    removal = await delete_unused(tx, unused, kind, lines)
    count_removed(tx, [row for row in traces if row.id in set(removal.gone)], -1)
    return Dropped(len(removal.gone), [*removal.left, *ids[CHUNK:]])


def _build_walks(kind: str) -> list[Walk]:
    return [Walk(_find_rollouts, _drop_rollouts, (kind, status)) for status in sorted(ENDED)]


ROLLOUTS = [*_build_walks(TASK), *_build_walks(KEPT_TRACE)]
RUNS = _build_walks(RUN)
"""Rollouts of deleted runs, and of runs without a thread."""


async def _find_spans(tx: Tx, age: int, place: SpanCursor | None) -> DueItems:
    before = tx.now - age
    page = await old_spans(tx, before, place or SpanCursor(-1, ""), FOUND_WITH_SPANS)
    places = {cursor.rollout_id: cursor for cursor in page}
    unused = await unused_rollouts(tx, list(places), before)
    due = [DueItem(row.id, await count_spans(tx, places[row.id])) for row in unused]
    return due, page[-1] if len(page) == FOUND_WITH_SPANS else None


async def _drop_spans(tx: Tx, age: int, ids: Sequence[str]) -> Dropped:
    rows = await unused_rollouts(tx, ids[:CHUNK], tx.now - age, lock=True)
    removal = await delete_spans(tx, rows)
    return Dropped(removal.spans, [*removal.left, *ids[CHUNK:]])


SPANS = [Walk(_find_spans, _drop_spans)]
