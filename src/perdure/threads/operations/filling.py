"""The values of states that are in the pieces of the graphs room, for those who read whole states."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.graphs.queries import find
from perdure.graphs.records import GraphQuery
from perdure.kernel.storage.port import Tx
from perdure.threads.rows import StateRow, values_text

IN_PIECES = ""
"""The body of a state whose values are in pieces; no JSON is empty."""


async def filled(tx: Tx, rows: Sequence[StateRow]) -> list[StateRow]:
    """Checkpoints, with the values of those that are in pieces."""
    return [await _filled(tx, row) for row in rows]


async def filled_one(tx: Tx, row: StateRow | None) -> StateRow | None:
    return None if row is None else await _filled(tx, row)


async def _filled(tx: Tx, row: StateRow) -> StateRow:
    if row.body != IN_PIECES:
        return row
    found = await find(tx, GraphQuery(thread_id=row.thread_id, checkpoint_ns="", checkpoint_id=row.id))
    return msgspec.structs.replace(row, body=next(map(values_text, found), "null"))
