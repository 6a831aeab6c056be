"""The SQL of items, written once for both engines."""

from __future__ import annotations

from perdure.items.model import EndsRow, ExpiredItemRow, ItemRow, ItemVectorRow, NewItemRow, ValuedVectorRow
from perdure.items.tables import ITEM_VECTORS, ITEMS
from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.kernel.storage.filters import ListField, Listing, SortKey, SortOrder

_LIVE = "(expires IS NULL OR expires > :now)"
_LIVE_I = "(i.expires IS NULL OR i.expires > :now)"

# --- one by one -------------------------------------------------------------------------------------------

# Items of a namespace by their keys.
GET = statement(
    "SELECT {columns} FROM items WHERE ns = :ns AND path = :path AND key {among:keys} AND " + _LIVE,
    row=ItemRow,
)
# Store items. An item that replaces an expired one, not yet deleted, counts as new.
PUT = BulkInsert(
    ITEMS,
    NewItemRow,
    on_conflict="UPDATE SET created = CASE WHEN items.expires <= excluded.updated THEN excluded.created"
    " ELSE items.created END, updated = excluded.updated, expires = excluded.expires,"
    " ttl = excluded.ttl, value = excluded.value",
)
# Delete items.
DROP = statement("DELETE FROM items WHERE ns = :ns AND path = :path AND key {among:keys}")
# Restart the TTL of an item.
REFRESH = statement(
    "UPDATE items SET expires = :now + ttl WHERE ns = :ns AND path = :path AND key = :key AND expires > :now"
)

# --- searching --------------------------------------------------------------------------------------------

# The first and last namespace of a range. If they are equal, the index has its items in their order.
ENDS = statement(
    """
    SELECT
      (SELECT path FROM items WHERE ns = :ns AND path >= :low AND path < :high ORDER BY path LIMIT 1)
        AS lowest,
      (SELECT path FROM items WHERE ns = :ns AND path >= :low AND path < :high ORDER BY path DESC LIMIT 1)
        AS highest
    """,
    row=EndsRow,
)
_BEFORE = " AND updated <= :updated AND (updated, path, key) < (:updated, :last_path, :last_key)"
FIELDS = {"value": ListField("value", "text")}
ORDER = SortOrder(
    (
        SortKey("updated", "time", descending=True),
        SortKey("path", "text", descending=True),
        SortKey("key", "text", descending=True),
    )
)
WITHOUT_VECTORS = (
    "NOT EXISTS (SELECT 1 FROM item_vectors AS v"
    " WHERE v.ns = items.ns AND v.path = items.path AND v.key = items.key)"
)
# The items of one namespace before a position.
IN_ONE = Listing("{columns}", "items WHERE ns = :ns AND path = :path AND " + _LIVE + _BEFORE, ItemRow)
# The items of a range of namespaces before a position.
IN_RANGE = Listing(
    "{columns}", "items WHERE ns = :ns AND path >= :low AND path < :high AND " + _LIVE + _BEFORE, ItemRow
)

# --- namespaces -------------------------------------------------------------------------------------------

# The namespaces of a range. Each step reads the next one from the index, however many items a namespace has.
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
    """,
    row=str,
)

# --- expiry -----------------------------------------------------------------------------------------------

# A batch of expired items of all namespaces.
EXPIRED = statement(
    "SELECT {columns} FROM items WHERE expires <= :now ORDER BY expires LIMIT :limit {skip}",
    row=ExpiredItemRow,
)

# --- vectors ----------------------------------------------------------------------------------------------

# Insert the vectors of items.
ADD_VECTORS = BulkInsert(ITEM_VECTORS, ItemVectorRow)
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
# The next vectors of a range of namespaces.
VECTORS = statement("SELECT {columns:v}" + _VECTORS, row=ItemVectorRow)
# The next vectors with the values of their items.
VECTORS_AND_VALUES = statement(
    "SELECT v.path, v.key, v.field, v.vector, i.value" + _VECTORS, row=ValuedVectorRow
)
# Delete the vectors of items.
DROP_VECTORS = statement("DELETE FROM item_vectors WHERE ns = :ns AND path = :path AND key {among:keys}")

name_statements(globals())
