"""SQL of the outbox, written once for both engines."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import ListField, Listing, SortKey, SortOrder
from perdure.outbox.model import EffectBodyRow, EffectKey, EffectRow
from perdure.outbox.tables import BODIES, OUTBOX

# Add effects.
ADD_EFFECTS = BulkInsert(OUTBOX, EffectRow)
# Add the bodies of effects.
ADD_BODIES = BulkInsert(BODIES, EffectBodyRow)

_FIND_DUE = """
    WITH c AS MATERIALIZED (SELECT ns, id
    FROM outbox
    WHERE consumer = :consumer AND due_at <= :now"""
_TAKE = """
    ORDER BY due_at
    LIMIT :n {skip})
    UPDATE outbox SET due_at = :until, attempts = attempts + 1
    FROM c
    WHERE outbox.ns = c.ns AND outbox.id = c.id
    RETURNING {columns:outbox}
    """
_NEXT = "SELECT min(due_at) FROM outbox WHERE consumer = :consumer AND due_at IS NOT NULL"
_NEW = " AND attempts = 0"
_AGAIN = " AND attempts > 0"

# Claim due effects of a consumer in all namespaces until its lease ends.
CLAIM = statement(_FIND_DUE + _TAKE, row=EffectRow)
# Claim effects without a try.
CLAIM_NEW = statement(_FIND_DUE + _NEW + _TAKE, row=EffectRow)
# Claim effects with an earlier try.
CLAIM_AGAIN = statement(_FIND_DUE + _AGAIN + _TAKE, row=EffectRow)
# Time at which the next effect of a consumer is due.
NEXT_DUE = statement(_NEXT, row=int)
# Time at which the next effect of a consumer without a try is due.
NEXT_NEW = statement(_NEXT + _NEW, row=int)
# Time at which the next effect of a consumer with an earlier try is due.
NEXT_AGAIN = statement(_NEXT + _AGAIN, row=int)
# Bodies of effects.
GET_BODIES = statement(
    "SELECT {columns} FROM outbox_bodies WHERE ns = :ns AND id {among:ids}", row=EffectBodyRow
)
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
EFFECT_FIELDS: Mapping[str, ListField] = {
    "status": ListField("status", "text"),
    "consumer": ListField("consumer", "text"),
    "subject": ListField("subject", "text"),
}
_OF_NAMESPACE = "outbox WHERE ns = :ns"
# Effects of a namespace.
LIST_EFFECTS = Listing("{columns}", _OF_NAMESPACE, EffectRow)
# Effects that wait for their first try.
LIST_WAITING = Listing(
    "{columns}",
    _OF_NAMESPACE + " AND status = :open AND answered = attempts AND attempts = forgiven",
    EffectRow,
)
# Effects currently being delivered.
LIST_PROCESSING = Listing(
    "{columns}", _OF_NAMESPACE + " AND status = :open AND attempts > answered AND due_at > :now", EffectRow
)
# Delivered effects.
LIST_COMPLETED = Listing("{columns}", _OF_NAMESPACE + " AND status = :delivered", EffectRow)
# Effects whose last try failed or was never answered, and dead effects.
LIST_FAILED = Listing(
    "{columns}",
    _OF_NAMESPACE + " AND status {among:unsettled} AND (due_at IS NULL"
    " OR answered = attempts AND attempts > forgiven OR attempts > answered AND due_at <= :now)",
    EffectRow,
)
# Effects of a namespace with ids after one.
LIST_AFTER = Listing("{columns}", _OF_NAMESPACE + " AND id > :after", EffectKey)
NEWEST_FIRST = SortOrder((SortKey("id", "text", descending=True),))
OLDEST_FIRST = SortOrder((SortKey("id", "text"),))

# Some effects of all namespaces that ended before a time, the earliest first.
ENDED_BEFORE = statement(
    """
    SELECT {columns} FROM outbox
    WHERE status = :status AND ended_at < :before ORDER BY ended_at LIMIT :n {skip}
    """,
    row=EffectKey,
)
# Delete effects.
DROP_EFFECTS = statement("DELETE FROM outbox WHERE ns = :ns AND id {among:ids}")
# Delete the bodies of effects.
DROP_BODIES = statement("DELETE FROM outbox_bodies WHERE ns = :ns AND id {among:ids}")

name_statements(globals())
