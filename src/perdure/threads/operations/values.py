"""Values of states that a graph stores in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.checkpoints.queries import find
from perdure.checkpoints.records import CheckpointQuery
from perdure.kernel.storage.port import Tx
from perdure.threads.rows import IN_PIECES, StateRow, values_text


async def with_values(tx: Tx, rows: Sequence[StateRow]) -> list[StateRow]:
    """Return states with their values, including values stored in pieces."""
    return [await with_its_values(tx, row) for row in rows]


async def with_its_values(tx: Tx, row: StateRow) -> StateRow:
    if row.body != IN_PIECES:
        return row
    rows = await find(tx, CheckpointQuery(thread_id=row.thread_id, checkpoint_ns="", checkpoint_id=row.id))
    return msgspec.structs.replace(row, body=next(map(values_text, rows), "null"))
