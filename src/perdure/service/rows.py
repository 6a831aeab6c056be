"""Rows of namespaces, audit and idempotency keys."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class AuditRow(msgspec.Struct, gc=False):
    """An audit entry with the name of its namespace; its id is the microsecond in which it was made."""

    id: int
    namespace: str | None
    actor: str
    action: str
    object: str
    count: int


class NewEntry(msgspec.Struct, frozen=True, gc=False):
    """An audit entry of the transaction's namespace."""

    id: int
    actor: str
    action: str
    count: int
    object: str


class KeyRow(NamedTuple):
    """An idempotency key. Its answer is JSON, and None until the first call under it has ended."""

    key: str
    action: str
    answer: str | None


class NamespaceRow(NamedTuple):
    """A namespace as it is stored."""

    id: int
    name: str
    create_time: int
