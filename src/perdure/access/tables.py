"""The tables of access. What belongs to no namespace has the number of the system in `ns`."""

from perdure.kernel.storage.schema import Index, Table, integer, text

SYSTEM = 0
"""The `ns` of tokens and of what is done to them; namespaces are counted from 1."""

NAMESPACES = Table(
    "namespaces",
    (integer("id"), text("name"), integer("create_time")),
    key=("id",),
    indexes=(Index("namespaces_name", ("name",), unique=True),),
)

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

AUDIT = Table(
    "audit",
    (
        integer("ns"),
        integer("id"),
        text("actor"),
        text("action"),
        integer("count"),
        text("object"),
    ),
    key=("ns", "id"),
    indexes=(Index("audit_order", ("id",), unique=True), Index("audit_actor", ("actor", "id"))),
)

IDEMPOTENCY = Table(
    "idempotency",
    (integer("ns"), text("key"), integer("time"), text("action"), text("answer", null=True)),
    key=("ns", "key"),
    indexes=(Index("idempotency_time", ("time",)),),
    hot=True,
)

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
"""What people want to see of a screen again; an empty `owner` shares it with the namespace."""

TABLES = (NAMESPACES, TOKENS, LOGINS, AUDIT, IDEMPOTENCY, SAVED_VIEWS)
