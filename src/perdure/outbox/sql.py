"""The SQL of the outbox, written once for both engines."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Field, Listing
from perdure.outbox.tables import BODIES, OUTBOX

EFFECT_VIEW = "id, consumer, subject, target, status, attempts, created_at, due_at, ended_at, last_error"
STATE = "status, attempts, answered, forgiven, since, due_at, ended_at, last_error"

ADD_EFFECTS = BulkInsert(OUTBOX)
ADD_BODIES = BulkInsert(BODIES)

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
    RETURNING outbox.ns, outbox.id, outbox.consumer, outbox.subject, outbox.target, outbox.status,
      outbox.attempts, outbox.created_at, outbox.due_at, outbox.ended_at, outbox.last_error,
      outbox.answered, outbox.forgiven, outbox.since
    """
)
NEXT_DUE = statement("SELECT min(due_at) FROM outbox WHERE consumer = :consumer AND due_at IS NOT NULL")
GET_BODIES = statement("SELECT id, body FROM outbox_bodies WHERE ns = :ns AND id {among:ids}")
LOCK_STATES = statement(
    "SELECT id, " + STATE + " FROM outbox WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}"
)
MOVE = BulkUpdate(
    OUTBOX,
    sets=("status", "attempts", "answered", "forgiven", "since", "due_at", "ended_at", "last_error"),
    keys=("ns", "id"),
)

GET_EFFECTS = statement("SELECT " + EFFECT_VIEW + " FROM outbox WHERE ns = :ns AND id {among:ids}")
EFFECT_FIELDS: Mapping[str, Field] = {
    "status": Field("status", "text"),
    "consumer": Field("consumer", "text"),
    "subject": Field("subject", "text"),
}
LIST_EFFECTS = Listing(EFFECT_VIEW, "outbox WHERE ns = :ns")
NEWEST_FIRST = " ORDER BY id DESC"

OLD = statement(
    """
    SELECT ns, id FROM outbox
    WHERE status = :status AND ended_at < :before ORDER BY ended_at LIMIT :n {skip}
    """
)
DROP_EFFECTS = statement("DELETE FROM outbox WHERE ns = :ns AND id {among:ids}")
DROP_BODIES = statement("DELETE FROM outbox_bodies WHERE ns = :ns AND id {among:ids}")

name_statements(globals())
