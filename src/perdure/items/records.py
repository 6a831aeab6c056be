"""What callers see of items, and what they may ask for in one batch. Times are epoch seconds."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType, field

from perdure.kernel.record import Record

DEFAULT_LIMIT = 10
DEFAULT_NAMESPACES = 100

MatchKind = Literal["prefix", "suffix"]


class Item(Record, kw_only=True):
    """A JSON object that is kept under a namespace and a key."""

    namespace: list[str]
    key: str
    value: dict[str, Any]
    created_at: float
    updated_at: float
    expires_at: float | None = None
    score: float | None = None
    """How near it is to the query of a search, up to 1; None where nothing was compared."""


class _Operation(msgspec.Struct, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """One of the things that a batch can hold."""


class GetItem(_Operation, tag="get", kw_only=True):
    """Read an item. Without `refresh_ttl` the policy says whether that keeps it longer."""

    namespace: list[str]
    key: str
    refresh_ttl: bool | None = None


class PutItem(_Operation, tag="put", kw_only=True):
    """Keep an item in the place of what was there.

    Without `ttl_minutes` it lasts as long as the policy says, with None for ever. `index` names the fields
    that are searched by meaning; False leaves it out of that.
    """

    namespace: list[str]
    key: str
    value: dict[str, Any]
    ttl_minutes: float | UnsetType | None = UNSET
    index: bool | list[str] | None = None


class DeleteItem(_Operation, tag="delete", kw_only=True):
    """Remove an item, if it is there."""

    namespace: list[str]
    key: str


class SearchItems(_Operation, tag="search", kw_only=True):
    """Items at or below a namespace, those changed last first, or the nearest to a `query` first."""

    namespace_prefix: list[str] = field(default_factory=list)
    filter: dict[str, Any] | None = None
    query: str | None = None
    limit: int = DEFAULT_LIMIT
    offset: int = 0
    refresh_ttl: bool | None = None
    cursor: str | None = None


class NamespaceMatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a namespace must begin or end; the label `*` stands for any."""

    kind: MatchKind
    path: list[str]


class ListNamespaces(_Operation, tag="namespaces", kw_only=True):
    """The namespaces that hold items and fit every match, cut to `max_depth` labels, in their order."""

    matches: list[NamespaceMatch] = field(default_factory=list)
    max_depth: int | None = None
    limit: int = DEFAULT_NAMESPACES
    offset: int = 0
    cursor: str | None = None


ItemOp = GetItem | PutItem | DeleteItem | SearchItems | ListNamespaces


class ItemResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one operation of a batch gives: an item, items or namespaces; nothing for a change."""

    item: Item | None = None
    items: list[Item] | None = None
    namespaces: list[list[str]] | None = None


class ItemPolicy(msgspec.Struct, kw_only=True, frozen=True):
    """How long items last where nobody says otherwise. Durations are in minutes."""

    default_ttl: float | None = None
    refresh_on_read: bool = True
    sweep_interval_minutes: float | None = None
    """How often what has expired is removed; it is out of sight at once in any case."""
