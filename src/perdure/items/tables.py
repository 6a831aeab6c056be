"""The tables of items."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, blob, integer, text

ITEMS = Table(
    "items",
    (
        integer("ns"),
        text("path"),
        text("key"),
        integer("created"),
        integer("updated"),
        integer("expires", null=True),
        integer("ttl", null=True),
        text("value"),
    ),
    key=("ns", "path", "key"),
    indexes=(
        Index("items_recent", ("ns", "path", "updated")),
        Index("items_expires", ("expires",), "expires IS NOT NULL"),
    ),
)
"""Items as JSON. `path` is the namespace; an item is hidden once `expires` has passed."""

ITEM_VECTORS = Table(
    "item_vectors",
    (integer("ns"), text("path"), text("key"), text("field"), blob("vector")),
    key=("ns", "path", "key", "field"),
)
"""Vectors of items by field: length 1, 32-bit floats."""

TABLES = (ITEMS, ITEM_VECTORS)
