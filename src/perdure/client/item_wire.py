"""What the native door takes and gives of items, beyond their records."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from perdure.client.native_wire import MAX_BATCH, MAX_PAGE, Body, Limit, Offset
from perdure.items.model import MAX_KEY, MAX_LABELS, MAX_PATH
from perdure.items.records import DEFAULT_LIMIT, DEFAULT_NAMESPACES, ItemOp, ItemResult

Key = Annotated[str, Meta(max_length=MAX_KEY)]
Labels = Annotated[list[str], Meta(max_length=MAX_LABELS)]
Dotted = Annotated[str, Meta(min_length=1, max_length=MAX_PATH)]
"""A namespace as it stands in an address: its labels, with periods between them."""
Depth = Annotated[int, Meta(ge=1, le=MAX_LABELS)]
Minutes = Annotated[float, Meta(gt=0)]


class ItemName(msgspec.Struct, kw_only=True):
    """Which item."""

    namespace: Dotted
    key: Key


class ItemQuery(ItemName, kw_only=True):
    """Which item, and whether reading it keeps it longer; if that is not said, the server's policy does."""

    refresh_ttl: bool | None = None


class NewItem(Body, kw_only=True):
    """An item that is kept in the place of what was there; without `ttl_minutes` as long as is usual."""

    namespace: Annotated[list[str], Meta(min_length=1, max_length=MAX_LABELS)]
    key: Key
    value: dict[str, Any]
    ttl_minutes: Minutes | UnsetType | None = UNSET
    index: bool | list[str] | None = None


class ItemSearch(Body, kw_only=True):
    """Items at or below a namespace that fit a filter, those changed last first."""

    namespace_prefix: Labels = field(default_factory=list)
    filter: dict[str, Any] | None = None
    query: str | None = None
    limit: Limit = DEFAULT_LIMIT
    offset: Offset = 0
    refresh_ttl: bool | None = None


class NamespaceQuery(msgspec.Struct, kw_only=True):
    """Which namespaces; the label `*` stands for any."""

    prefix: Dotted | None = None
    suffix: Dotted | None = None
    max_depth: Depth | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = DEFAULT_NAMESPACES
    offset: Offset = 0


class Namespaces(msgspec.Struct, kw_only=True):
    """Namespaces that hold items, in their order."""

    namespaces: list[list[str]]


class ItemOps(Body, kw_only=True):
    """Operations that are done at once; what they read is as it was before what they write."""

    ops: Annotated[list[ItemOp], Meta(max_length=MAX_BATCH)]


class ItemResults(msgspec.Struct, kw_only=True):
    """What each operation gives, in the order of the request."""

    results: list[ItemResult]
