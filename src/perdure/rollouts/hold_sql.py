"""SQL of holds: paused queues and drained workers."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.rollouts.tables import CLAIM_HOLDS


class HoldRow(NamedTuple):
    """A paused queue or a drained worker, and since when."""

    kind: str
    name: str
    since: int


# Pause queues and drain workers; existing holds keep their time.
ADD_HOLDS = BulkInsert(CLAIM_HOLDS, HoldRow, on_conflict="NOTHING")
# The holds of a namespace.
LIST_HOLDS = statement("SELECT {columns} FROM claim_holds WHERE ns = :ns", row=HoldRow)
# End a hold.
DROP_HOLD = statement("DELETE FROM claim_holds WHERE ns = :ns AND kind = :kind AND name = :name")
# The agents of the ready rollouts of a queue.
READY_AGENTS = statement(
    """
    SELECT DISTINCT agent FROM rollouts
    WHERE ns = :ns AND queue = :queue AND ready IS NOT NULL AND agent IS NOT NULL LIMIT :n
    """,
    row=str,
)

name_statements(globals())
