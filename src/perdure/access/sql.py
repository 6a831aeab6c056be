"""The SQL of the access room, written once for both engines."""

from __future__ import annotations

from perdure.access.tables import IDEMPOTENCY
from perdure.kernel.storage.dialect import BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Field, Listing

# --- namespaces -------------------------------------------------------------------------------------------

FIND = statement("SELECT id FROM namespaces WHERE name = :name")
NEXT = statement("SELECT coalesce(max(id), 0) + 1 FROM namespaces")
ALL = statement("SELECT id, name FROM namespaces ORDER BY id")

# --- tokens -----------------------------------------------------------------------------------------------

TOKEN_VIEW = "id, name, scopes, namespaces, create_time, expire_time, revoke_time, last_used_time"  # noqa: S105
FIND_TOKENS = statement("SELECT hash, " + TOKEN_VIEW + " FROM tokens WHERE ns = :ns AND id {among:ids}")
LIST_TOKENS = statement("SELECT " + TOKEN_VIEW + " FROM tokens WHERE ns = :ns ORDER BY create_time, id")
LOCK_TOKEN = statement("SELECT " + TOKEN_VIEW + " FROM tokens WHERE ns = :ns AND id = :id {lock}")
ANY_TOKEN = statement("SELECT 1 FROM tokens WHERE ns = :ns LIMIT 1")
REVOKE_TOKEN = statement("UPDATE tokens SET revoke_time = :now WHERE ns = :ns AND id = :id")
USE_TOKEN = statement(
    """
    UPDATE tokens SET last_used_time = :now
    WHERE ns = :ns AND id = :id AND (last_used_time IS NULL OR last_used_time <= :before)
    """
)

# --- the audit --------------------------------------------------------------------------------------------

ADD_ENTRY = statement(
    """
    INSERT INTO audit (ns, id, actor, action, count, object)
    VALUES (:ns, :id, :actor, :action, :count, :object)
    ON CONFLICT DO NOTHING
    """
)
AUDIT_VIEW = "a.id, n.name, a.actor, a.action, a.object, a.count"
AUDIT_FIELDS = {
    "namespace": Field("a.ns", "int"),
    "actor": Field("a.actor", "text"),
    "action": Field("a.action", "text"),
}
AUDIT_ORDER = "a.id DESC"
LIST_AUDIT = Listing(AUDIT_VIEW, "audit AS a LEFT JOIN namespaces AS n ON n.id = a.ns WHERE a.id < :before")
TRIM_AUDIT = statement(
    """
    DELETE FROM audit WHERE id <= (SELECT max(id) FROM
      (SELECT id FROM audit WHERE id < :before ORDER BY id LIMIT :n) AS old)
    """
)

# --- idempotency keys -------------------------------------------------------------------------------------

TAKE_KEY = statement(
    """
    INSERT INTO idempotency (ns, key, time, action, answer)
    VALUES (:ns, :key, :now, :action, NULL)
    ON CONFLICT (ns, key) DO NOTHING
    """
)
FIND_KEYS = statement("SELECT key, action, answer FROM idempotency WHERE ns = :ns AND key {among:keys}")
KEEP_ANSWERS = BulkUpdate(IDEMPOTENCY, sets=("answer",), keys=("ns", "key"))
DROP_KEYS = statement("DELETE FROM idempotency WHERE ns = :ns AND key {among:keys}")
TRIM_KEYS = statement(
    """
    DELETE FROM idempotency WHERE time <= (SELECT max(time) FROM
      (SELECT time FROM idempotency WHERE time < :before ORDER BY time LIMIT :n) AS old)
    """
)

name_statements(globals())
