"""The SQL of holds: queues that are paused, and workers that are drained."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.rollouts.tables import CLAIM_HOLDS


class HoldRow(NamedTuple):
    """A queue that is paused, or a worker that is drained, and since when."""

    kind: str
    name: str
    since: int


# Queues that are paused from now on, and workers that are drained; those that are already stay as they are.
ADD_HOLDS = BulkInsert(CLAIM_HOLDS, HoldRow, on_conflict="NOTHING")
# The holds of a namespace.
LIST_HOLDS = statement("SELECT {columns} FROM claim_holds WHERE ns = :ns", row=HoldRow)
# End a hold.
DROP_HOLD = statement("DELETE FROM claim_holds WHERE ns = :ns AND kind = :kind AND name = :name")
# The agents of what is ready in a queue.
READY_AGENTS = statement(
    """
    SELECT DISTINCT agent FROM rollouts
    WHERE ns = :ns AND queue = :queue AND ready IS NOT NULL AND agent IS NOT NULL LIMIT :n
    """,
    row=str,
)

name_statements(globals())
