"""The values of states that are in the pieces of the graphs room, for those who read whole states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.graphs.queries import find
from perdure.graphs.records import GraphQuery
from perdure.graphs.rows import tuple_of
from perdure.graphs.view import state_values
from perdure.kernel.codec import encode_json
from perdure.kernel.storage.port import Row, Tx

IN_PIECES = ""
"""The body of a state whose values are in pieces; no JSON is empty."""
BODY = 11
"""Where the body stands in a row of `CHECKPOINT_VIEW`."""


async def filled(tx: Tx, rows: Sequence[Row]) -> list[Row]:
    """Rows of checkpoints, with the values of those that are in pieces."""
    return [await _filled(tx, row) for row in rows]


async def filled_one(tx: Tx, row: Row | None) -> Row | None:
    return None if row is None else await _filled(tx, row)


async def filled_states(tx: Tx, states: Mapping[str, Row]) -> dict[str, Row]:
    return {key: await _filled(tx, row) for key, row in states.items()}


async def _filled(tx: Tx, row: Row) -> Row:
    if row[BODY] != IN_PIECES:
        return row
    found = await find(tx, GraphQuery(thread_id=row[0], checkpoint_ns="", checkpoint_id=row[1]))
    body = encode_json(state_values(tuple_of(found[0])), what="values", nan="keep") if found else "null"
    return (*row[:BODY], body, *row[BODY + 1 :])
