"""Tables of namespaces, audit and idempotency keys."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, integer, text

SYSTEM = 0
"""The `ns` of tokens and of their audit entries; namespaces are numbered from 1."""
NAMESPACES = Table(
    "namespaces",
    (integer("id"), text("name"), integer("create_time")),
    key=("id",),
    indexes=(Index("namespaces_name", ("name",), unique=True),),
)
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
TRIM_ROWS = 500
