"""SQL of access, written once for both engines."""

from __future__ import annotations

from perdure.access.logins import LoginRow
from perdure.access.model import TokenRow
from perdure.access.tables import LOGINS, SAVED_VIEWS, TOKENS
from perdure.access.views import ViewRow
from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement

# --- tokens -----------------------------------------------------------------------------------------------

# Add tokens.
ADD_TOKENS = BulkInsert(TOKENS, TokenRow)
# Tokens by their ids.
FIND_TOKENS = statement("SELECT {columns} FROM tokens WHERE ns = :ns AND id {among:ids}", row=TokenRow)
# Tokens after a position, oldest first.
LIST_TOKENS = statement(
    """
    SELECT {columns} FROM tokens WHERE ns = :ns AND (create_time, id) > (:created, :last)
    ORDER BY create_time, id LIMIT :n
    """,
    row=TokenRow,
)
# Lock a token.
LOCK_TOKEN = statement("SELECT {columns} FROM tokens WHERE ns = :ns AND id = :id {lock}", row=TokenRow)
# Any token.
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
# Delete some expired logins.
TRIM_LOGINS = statement(
    """
    DELETE FROM logins WHERE ns = :ns AND id {listed:SELECT id FROM logins
      WHERE ns = :ns AND expire_time <= :wall ORDER BY expire_time LIMIT :n}
    """
)

# --- saved views ------------------------------------------------------------------------------------------

# Save views, replacing existing ones.
SAVE_VIEWS = BulkInsert(
    SAVED_VIEWS,
    ViewRow,
    on_conflict="UPDATE SET query = excluded.query, saved_at = excluded.saved_at",
)
# Views of some owners.
LIST_VIEWS = statement(
    """
    SELECT {columns} FROM saved_views WHERE ns = :ns AND owner {among:owners}
    ORDER BY screen, name, owner LIMIT :n
    """,
    row=ViewRow,
)
# Number of an owner's views.
COUNT_VIEWS = statement("SELECT count(*) FROM saved_views WHERE ns = :ns AND owner = :owner", row=int)
# Delete a view.
DROP_VIEW = statement(
    "DELETE FROM saved_views WHERE ns = :ns AND owner = :owner AND screen = :screen AND name = :name"
)

name_statements(globals())
