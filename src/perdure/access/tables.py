"""Tables of access. Rows of no namespace have `SYSTEM` in `ns`."""

from perdure.kernel.storage.schema import Index, Table, integer, text
from perdure.service.tables import AUDIT, IDEMPOTENCY, NAMESPACES

TOKENS = Table(
    "tokens",
    (
        integer("ns"),
        text("id"),
        text("hash"),
        text("name"),
        text("scopes"),
        text("namespaces"),
        integer("create_time"),
        integer("expire_time", null=True),
        integer("revoke_time", null=True),
        integer("last_used_time", null=True),
    ),
    key=("ns", "id"),
)

LOGINS = Table(
    "logins",
    (
        integer("ns"),
        text("id"),
        text("hash"),
        text("credential"),
        text("proof"),
        integer("create_time"),
        integer("last_used_time"),
        integer("idle"),
        integer("expire_time"),
        integer("end_time"),
    ),
    key=("ns", "id"),
    indexes=(
        Index("logins_credential", ("ns", "credential", "create_time")),
        Index("logins_expiry", ("ns", "expire_time")),
    ),
)
"""Logins of the dashboard. `expire_time` is `idle` after the last use, and never after `end_time`."""


SAVED_VIEWS = Table(
    "saved_views",
    (
        integer("ns"),
        text("owner"),
        text("screen"),
        text("name"),
        text("query"),
        integer("saved_at"),
    ),
    key=("ns", "owner", "screen", "name"),
)
"""Saved views of screens; an empty `owner` shares a view with the namespace."""

TABLES = (NAMESPACES, TOKENS, LOGINS, AUDIT, IDEMPOTENCY, SAVED_VIEWS)
