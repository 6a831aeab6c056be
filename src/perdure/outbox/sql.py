"""The SQL of the outbox, written once for both engines."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Field, Listing
from perdure.outbox.model import BodyRow, EffectKey, EffectRow
from perdure.outbox.tables import BODIES, OUTBOX

# Add effects.
ADD_EFFECTS = BulkInsert(OUTBOX, EffectRow)
# Add the bodies of effects.
ADD_BODIES = BulkInsert(BODIES, BodyRow)

# Take effects of all namespaces that are due for a consumer, until its lease ends.
CLAIM = statement(
    """
    WITH c AS MATERIALIZED (SELECT ns, id
    FROM outbox
    WHERE consumer = :consumer AND due_at <= :now
    ORDER BY due_at
    LIMIT :n {skip})
    UPDATE outbox SET due_at = :until, attempts = attempts + 1
    FROM c
    WHERE outbox.ns = c.ns AND outbox.id = c.id
    RETURNING {columns:outbox}
    """,
    row=EffectRow,
)
# When the next effect of a consumer is due.
NEXT_DUE = statement(
    "SELECT min(due_at) FROM outbox WHERE consumer = :consumer AND due_at IS NOT NULL", row=int
)
# The bodies of effects.
GET_BODIES = statement("SELECT {columns} FROM outbox_bodies WHERE ns = :ns AND id {among:ids}", row=BodyRow)
# Lock effects, in the order of their ids.
LOCK_EFFECTS = statement(
    "SELECT {columns} FROM outbox WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}", row=EffectRow
)
# Write back effects that have moved.
MOVE = BulkUpdate(
    OUTBOX,
    EffectRow,
    sets=("status", "attempts", "answered", "forgiven", "since", "due_at", "ended_at", "last_error"),
    keys=("ns", "id"),
)

# Effects by their ids.
GET_EFFECTS = statement("SELECT {columns} FROM outbox WHERE ns = :ns AND id {among:ids}", row=EffectRow)
EFFECT_FIELDS: Mapping[str, Field] = {
    "status": Field("status", "text"),
    "consumer": Field("consumer", "text"),
    "subject": Field("subject", "text"),
}
# The effects of a namespace.
LIST_EFFECTS = Listing("{columns}", "outbox WHERE ns = :ns", EffectRow)
NEWEST_FIRST = " ORDER BY id DESC"

# Some effects of all namespaces that ended before a time, those that ended first.
ENDED_BEFORE = statement(
    """
    SELECT {columns} FROM outbox
    WHERE status = :status AND ended_at < :before ORDER BY ended_at LIMIT :n {skip}
    """,
    row=EffectKey,
)
# Drop effects.
DROP_EFFECTS = statement("DELETE FROM outbox WHERE ns = :ns AND id {among:ids}")
# Drop the bodies of effects.
DROP_BODIES = statement("DELETE FROM outbox_bodies WHERE ns = :ns AND id {among:ids}")

name_statements(globals())
