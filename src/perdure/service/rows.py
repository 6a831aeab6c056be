"""Rows of namespaces, audit and idempotency keys."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class AuditRow(msgspec.Struct, gc=False):
    """An audit entry with the name of its namespace; its id is its time in microseconds."""

    id: int
    namespace: str | None
    actor: str
    action: str
    object: str
    count: int


class NewEntry(msgspec.Struct, frozen=True, gc=False):
    """A new audit entry in the transaction's namespace."""

    id: int
    actor: str
    action: str
    count: int
    object: str


class KeyRow(NamedTuple):
    """An idempotency key. Its answer is JSON, or None while the first call runs."""

    key: str
    action: str
    answer: str | None


class NamespaceRow(NamedTuple):
    """A namespace as stored."""

    id: int
    name: str
    create_time: int
