"""SQL of namespaces, audit and idempotency keys, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import ListField, Listing, SortKey, SortOrder
from perdure.service.rows import AuditRow, KeyRow, NamespaceRow, NewEntry
from perdure.service.tables import AUDIT, IDEMPOTENCY, NAMESPACES

# Number of a namespace.
FIND_NAMESPACE = statement("SELECT id FROM namespaces WHERE name = :name", row=int)
# Number for the next namespace.
NEXT_NAMESPACE = statement("SELECT coalesce(max(id), 0) + 1 FROM namespaces", row=int)
# All namespaces.
LIST_NAMESPACES = statement("SELECT {columns} FROM namespaces ORDER BY id", row=NamespaceRow)
# Add namespaces.
ADD_NAMESPACES = BulkInsert(NAMESPACES, NamespaceRow)
# Add audit entries, except those whose id is taken.
ADD_ENTRIES = BulkInsert(AUDIT, NewEntry, on_conflict="NOTHING", any_key=True, folds=False)
AUDIT_FIELDS = {
    "namespace": ListField("a.ns", "int"),
    "actor": ListField("a.actor", "text"),
    "action": ListField("a.action", "text"),
}
AUDIT_ORDER = SortOrder((SortKey("a.id", "int", descending=True),))
# Audit entries before an id.
LIST_AUDIT = Listing(
    "a.id, n.name AS namespace, a.actor, a.action, a.object, a.count",
    "audit AS a LEFT JOIN namespaces AS n ON n.id = a.ns WHERE a.id < :before",
    AuditRow,
)
# Delete some of the oldest entries before a time.
TRIM_AUDIT = statement(
    """
    DELETE FROM audit WHERE id <= (SELECT max(id) FROM
      (SELECT id FROM audit WHERE id < :before ORDER BY id LIMIT :n) AS old)
    """
)
# Insert a key unless it exists.
TAKE_KEY = statement(
    """
    INSERT INTO idempotency (ns, key, time, action, answer)
    VALUES (:ns, :key, :now, :action, NULL)
    ON CONFLICT (ns, key) DO NOTHING
    """
)
# Keys with their actions and answers.
FIND_KEYS = statement("SELECT {columns} FROM idempotency WHERE ns = :ns AND key {among:keys}", row=KeyRow)
# Store the answers of the calls under keys.
KEEP_ANSWERS = BulkUpdate(IDEMPOTENCY, KeyRow, sets=("answer",), keys=("ns", "key"))
# Delete keys whose calls changed nothing.
DROP_KEYS = statement("DELETE FROM idempotency WHERE ns = :ns AND key {among:keys}")
# Delete some of the oldest keys before a time.
TRIM_KEYS = statement(
    """
    DELETE FROM idempotency WHERE time <= (SELECT max(time) FROM
      (SELECT time FROM idempotency WHERE time < :before ORDER BY time LIMIT :n) AS old)
    """
)


name_statements(globals())
