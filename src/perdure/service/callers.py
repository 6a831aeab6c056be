"""Callers of services: actor, scopes, credential."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, get_args, overload

import msgspec

Scope = Literal["read", "write", "worker", "admin"]
"""Scope of a token: `admin` allows everything, every other scope only what requires it."""
Credential = Literal["key", "token", "local", "link", "login"]
"""Credential of a caller: API key, token, local secret of the command, approval link, or dashboard login."""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
CREDENTIALS: Final[tuple[Credential, ...]] = get_args(Credential)
ALL_SCOPES: Final[frozenset[str]] = frozenset(SCOPES)
ADMIN: Final = "admin"
KEY: Final = "key"
"""Actor of a caller with the API key."""
EVERY_NAMESPACE = "*"
MAX_NAME = 200


class Actor(str):
    """Actor of a change: the id in the audit, with a name for display."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, id: str, name: str) -> Actor:
        actor = super().__new__(cls, id)
        actor.name = name
        return actor


@overload
def format_actor(actor: str) -> str: ...


@overload
def format_actor(actor: None) -> None: ...


def format_actor(actor: str | None) -> str | None:
    """Return the display name of an actor: the name of a token, otherwise the actor itself."""
    return actor.name if isinstance(actor, Actor) else actor


class Caller(msgspec.Struct, frozen=True):
    """A caller, its scopes and its namespaces. `namespaces` is None for every namespace."""

    actor: str
    scopes: frozenset[str]
    namespace: str
    namespaces: tuple[str, ...] | None
    credential: Credential | None = None
    """None for code in this process, and for a caller without a secret."""

    @classmethod
    def trusted(cls, actor: str, namespace: str = "default") -> Caller:
        """Return a caller inside this process with all scopes."""
        return cls(actor, ALL_SCOPES, namespace, None)


def allows(scopes: Collection[str], needed: str | None) -> bool:
    """Return whether these scopes include the required one; None is public."""
    return needed is None or ADMIN in scopes or needed in scopes
