"""The SQL of items, written once for both engines."""

from __future__ import annotations

from perdure.items.tables import ITEM_VECTORS, ITEMS
from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.kernel.storage.filters import Field, Listing

VIEW = "path, key, created, updated, expires, value"
_LIVE = "(expires IS NULL OR expires > :now)"
_LIVE_I = "(i.expires IS NULL OR i.expires > :now)"

# --- one by one -------------------------------------------------------------------------------------------

GET = statement(
    "SELECT " + VIEW + " FROM items WHERE ns = :ns AND path = :path AND key {among:keys} AND " + _LIVE
)
# What has expired but is not yet removed does not lend its age to what takes its place.
PUT = BulkInsert(
    ITEMS,
    on_conflict="UPDATE SET created = CASE WHEN items.expires <= excluded.updated THEN excluded.created"
    " ELSE items.created END, updated = excluded.updated, expires = excluded.expires,"
    " ttl = excluded.ttl, value = excluded.value",
)
DROP = statement("DELETE FROM items WHERE ns = :ns AND path = :path AND key {among:keys}")
REFRESH = statement(
    "UPDATE items SET expires = :now + ttl WHERE ns = :ns AND path = :path AND key = :key AND expires > :now"
)

# --- searching --------------------------------------------------------------------------------------------

# With one namespace in the range, as there mostly is, the index has its items in their order.
ENDS = statement(
    """
    SELECT
      (SELECT path FROM items WHERE ns = :ns AND path >= :low AND path < :high ORDER BY path LIMIT 1),
      (SELECT path FROM items WHERE ns = :ns AND path >= :low AND path < :high ORDER BY path DESC LIMIT 1)
    """
)
_BEFORE = " AND updated <= :updated AND (updated, path, key) < (:updated, :last_path, :last_key)"
FIELDS = {"value": Field("value", "text")}
ORDER = " ORDER BY updated DESC, path DESC, key DESC"
WITHOUT_VECTORS = (
    "NOT EXISTS (SELECT 1 FROM item_vectors AS v"
    " WHERE v.ns = items.ns AND v.path = items.path AND v.key = items.key)"
)
IN_ONE = Listing(VIEW, "items WHERE ns = :ns AND path = :path AND " + _LIVE + _BEFORE)
IN_RANGE = Listing(VIEW, "items WHERE ns = :ns AND path >= :low AND path < :high AND " + _LIVE + _BEFORE)

# --- namespaces -------------------------------------------------------------------------------------------

# Each step asks the index for the next namespace: as many steps as namespaces, however many items they hold.
NAMESPACES = statement(
    """
    WITH RECURSIVE walk (path, n) AS (
      SELECT (SELECT i.path FROM items AS i
        WHERE i.ns = :ns AND i.path >= :low AND i.path < :high AND """
    + _LIVE_I
    + """ ORDER BY i.path LIMIT 1), 1
      UNION ALL
      SELECT (SELECT i.path FROM items AS i
        WHERE i.ns = :ns AND i.path > walk.path AND i.path < :high AND """
    + _LIVE_I
    + """ ORDER BY i.path LIMIT 1), walk.n + 1
      FROM walk
      WHERE walk.path IS NOT NULL AND walk.n < :limit
    )
    SELECT path FROM walk WHERE path IS NOT NULL
    """
)

# --- expiry -----------------------------------------------------------------------------------------------

EXPIRED = statement(
    "SELECT ns, path, key FROM items WHERE expires <= :now ORDER BY expires LIMIT :limit {skip}"
)

# --- vectors ----------------------------------------------------------------------------------------------

ADD_VECTORS = BulkInsert(ITEM_VECTORS)
_VECTORS = (
    """
    FROM item_vectors AS v
    JOIN items AS i ON i.ns = v.ns AND i.path = v.path AND i.key = v.key
    WHERE v.ns = :ns AND v.path >= :low AND v.path < :high
      AND (v.path, v.key, v.field) > (:last_path, :last_key, :last_field)
      AND """
    + _LIVE_I
    + """
    ORDER BY v.path, v.key, v.field
    LIMIT :limit
    """
)
VECTORS = statement("SELECT v.path, v.key, v.field, v.vector" + _VECTORS)
VECTORS_AND_VALUES = statement("SELECT v.path, v.key, v.field, v.vector, i.value" + _VECTORS)
DROP_VECTORS = statement("DELETE FROM item_vectors WHERE ns = :ns AND path = :path AND key {among:keys}")

name_statements(globals())
