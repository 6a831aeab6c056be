"""Records of items, and the operations of a batch. Times are epoch seconds."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType, field

from perdure.kernel.record import Record

DEFAULT_LIMIT = 10
DEFAULT_NAMESPACES = 100

MatchKind = Literal["prefix", "suffix"]


class Item(Record, kw_only=True):
    """A JSON object stored under a namespace and a key."""

    namespace: list[str]
    key: str
    value: dict[str, Any]
    created_at: float
    updated_at: float
    expires_at: float | None = None
    score: float | None = None
    """Similarity to the query of a search, up to 1; None without a query."""


class _Operation(msgspec.Struct, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """Base of the operations of a batch."""


class GetItem(_Operation, tag="get", kw_only=True):
    """Read an item. `refresh_ttl` restarts its TTL; the default is in the policy."""

    namespace: list[str]
    key: str
    refresh_ttl: bool | None = None


class PutItem(_Operation, tag="put", kw_only=True):
    """Store an item, replacing an existing one.

    Without `ttl_minutes` the TTL is that of the policy; None never expires. `index` names the fields for
    search by meaning; False excludes the item from it.
    """

    namespace: list[str]
    key: str
    value: dict[str, Any]
    ttl_minutes: float | UnsetType | None = UNSET
    index: bool | list[str] | None = None


class DeleteItem(_Operation, tag="delete", kw_only=True):
    """Delete an item, if it exists."""

    namespace: list[str]
    key: str


class SearchItems(_Operation, tag="search", kw_only=True):
    """Items at or below a namespace, last changed first, or the nearest to a `query` first."""

    namespace_prefix: list[str] = field(default_factory=list)
    filter: dict[str, Any] | None = None
    query: str | None = None
    limit: int = DEFAULT_LIMIT
    offset: int = 0
    refresh_ttl: bool | None = None
    cursor: str | None = None


class NamespaceMatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Beginning or end of a namespace; the label `*` matches any label."""

    kind: MatchKind
    path: list[str]


class ListNamespaces(_Operation, tag="namespaces", kw_only=True):
    """Namespaces that hold items and meet every match, cut to `max_depth` labels, in their order."""

    matches: list[NamespaceMatch] = field(default_factory=list)
    max_depth: int | None = None
    limit: int = DEFAULT_NAMESPACES
    offset: int = 0
    cursor: str | None = None


ItemOp = GetItem | PutItem | DeleteItem | SearchItems | ListNamespaces


class ItemResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Result of one operation of a batch: an item, items or namespaces; empty for a change."""

    item: Item | None = None
    items: list[Item] | None = None
    namespaces: list[list[str]] | None = None


class ItemPolicy(msgspec.Struct, kw_only=True, frozen=True):
    """Default TTL of items. Durations are in minutes."""

    default_ttl: float | None = None
    refresh_on_read: bool = True
    sweep_interval_minutes: float | None = None
    """Interval between deletions of expired items, which are hidden at once in any case."""
