"""The SQL of access, written once for both engines."""

from __future__ import annotations

from perdure.access.logins import LoginRow
from perdure.access.model import AuditRow, KeyRow, NamespaceRow, NewEntry, TokenRow
from perdure.access.tables import AUDIT, IDEMPOTENCY, LOGINS, NAMESPACES, SAVED_VIEWS, TOKENS
from perdure.access.views import ViewRow
from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Field, Key, Listing, Order

# --- namespaces -------------------------------------------------------------------------------------------

# The number of a namespace.
FIND_NAMESPACE = statement("SELECT id FROM namespaces WHERE name = :name", row=int)
# The number of the next new namespace.
NEXT_NAMESPACE = statement("SELECT coalesce(max(id), 0) + 1 FROM namespaces", row=int)
# All namespaces.
LIST_NAMESPACES = statement("SELECT {columns} FROM namespaces ORDER BY id", row=NamespaceRow)
# Add namespaces.
ADD_NAMESPACES = BulkInsert(NAMESPACES, NamespaceRow)

# --- tokens -----------------------------------------------------------------------------------------------

# Add tokens.
ADD_TOKENS = BulkInsert(TOKENS, TokenRow)
# Tokens by their ids.
FIND_TOKENS = statement("SELECT {columns} FROM tokens WHERE ns = :ns AND id {among:ids}", row=TokenRow)
# Tokens after a place, the oldest first.
LIST_TOKENS = statement(
    """
    SELECT {columns} FROM tokens WHERE ns = :ns AND (create_time, id) > (:created, :last)
    ORDER BY create_time, id LIMIT :n
    """,
    row=TokenRow,
)
# Lock a token.
LOCK_TOKEN = statement("SELECT {columns} FROM tokens WHERE ns = :ns AND id = :id {lock}", row=TokenRow)
# Whether there is any token.
ANY_TOKEN = statement("SELECT 1 FROM tokens WHERE ns = :ns LIMIT 1", row=int)
# Revoke a token.
REVOKE_TOKEN = statement("UPDATE tokens SET revoke_time = :wall WHERE ns = :ns AND id = :id")
# Record the use of a token, unless an earlier use is recent.
USE_TOKEN = statement(
    """
    UPDATE tokens SET last_used_time = :wall
    WHERE ns = :ns AND id = :id AND (last_used_time IS NULL OR last_used_time <= :before)
    """
)

# --- logins -----------------------------------------------------------------------------------------------

# Add logins.
ADD_LOGINS = BulkInsert(LOGINS, LoginRow)
# Logins by their ids.
FIND_LOGINS = statement("SELECT {columns} FROM logins WHERE ns = :ns AND id {among:ids}", row=LoginRow)
# Record the use of a login, unless it has expired or an earlier use is recent.
USE_LOGIN = statement(
    """
    UPDATE logins SET last_used_time = :wall, expire_time = :expire
    WHERE ns = :ns AND id = :id AND expire_time > :wall AND last_used_time <= :before
    """
)
# Delete a login.
DROP_LOGIN = statement("DELETE FROM logins WHERE ns = :ns AND id = :id AND hash = :hash")
# Delete the logins of a credential, except the newest.
DROP_OLD_LOGINS = statement(
    """
    DELETE FROM logins WHERE ns = :ns AND credential = :credential AND id NOT IN
      (SELECT id FROM logins WHERE ns = :ns AND credential = :credential
       ORDER BY create_time DESC, id LIMIT :n)
    """
)
# Delete some logins that have expired.
TRIM_LOGINS = statement(
    """
    DELETE FROM logins WHERE ns = :ns AND id {listed:SELECT id FROM logins
      WHERE ns = :ns AND expire_time <= :wall ORDER BY expire_time LIMIT :n}
    """
)

# --- the audit --------------------------------------------------------------------------------------------

# Add audit entries, but for those whose id is taken.
ADD_ENTRIES = BulkInsert(AUDIT, NewEntry, on_conflict="NOTHING", any_key=True, folds=False)
AUDIT_FIELDS = {
    "namespace": Field("a.ns", "int"),
    "actor": Field("a.actor", "text"),
    "action": Field("a.action", "text"),
}
AUDIT_ORDER = Order((Key("a.id", "int", descending=True),))
# The audit entries before an id.
LIST_AUDIT = Listing(
    "a.id, n.name AS namespace, a.actor, a.action, a.object, a.count",
    "audit AS a LEFT JOIN namespaces AS n ON n.id = a.ns WHERE a.id < :before",
    AuditRow,
)
# Drop some of the oldest entries before a time.
TRIM_AUDIT = statement(
    """
    DELETE FROM audit WHERE id <= (SELECT max(id) FROM
      (SELECT id FROM audit WHERE id < :before ORDER BY id LIMIT :n) AS old)
    """
)

# --- saved views ------------------------------------------------------------------------------------------

# Save views; one that is known is replaced.
SAVE_VIEWS = BulkInsert(
    SAVED_VIEWS,
    ViewRow,
    on_conflict="UPDATE SET query = excluded.query, saved_at = excluded.saved_at",
)
# The views of some owners.
LIST_VIEWS = statement(
    """
    SELECT {columns} FROM saved_views WHERE ns = :ns AND owner {among:owners}
    ORDER BY screen, name, owner LIMIT :n
    """,
    row=ViewRow,
)
# How many views an owner has.
COUNT_VIEWS = statement("SELECT count(*) FROM saved_views WHERE ns = :ns AND owner = :owner", row=int)
# Delete a view.
DROP_VIEW = statement(
    "DELETE FROM saved_views WHERE ns = :ns AND owner = :owner AND screen = :screen AND name = :name"
)

# --- idempotency keys -------------------------------------------------------------------------------------

# Take a key, unless it is known.
TAKE_KEY = statement(
    """
    INSERT INTO idempotency (ns, key, time, action, answer)
    VALUES (:ns, :key, :now, :action, NULL)
    ON CONFLICT (ns, key) DO NOTHING
    """
)
# Keys with what was done under them.
FIND_KEYS = statement("SELECT {columns} FROM idempotency WHERE ns = :ns AND key {among:keys}", row=KeyRow)
# Store the answers of the calls under keys.
KEEP_ANSWERS = BulkUpdate(IDEMPOTENCY, KeyRow, sets=("answer",), keys=("ns", "key"))
# Drop keys under which nothing was done.
DROP_KEYS = statement("DELETE FROM idempotency WHERE ns = :ns AND key {among:keys}")
# Drop some of the oldest keys before a time.
TRIM_KEYS = statement(
    """
    DELETE FROM idempotency WHERE time <= (SELECT max(time) FROM
      (SELECT time FROM idempotency WHERE time < :before ORDER BY time LIMIT :n) AS old)
    """
)

name_statements(globals())
