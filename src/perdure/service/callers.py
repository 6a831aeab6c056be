"""Callers of services: actor, scopes, credential."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, get_args, overload

import msgspec

Scope = Literal["read", "write", "worker", "admin"]
"""What a token allows: `admin` everything, the others only what bears their name."""
Credential = Literal["key", "token", "local", "link", "login"]
"""What a caller came with: the API key, a token, the local secret of the command, the link of an approval, or
a login of the dashboard."""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
CREDENTIALS: Final[tuple[Credential, ...]] = get_args(Credential)
ALL_SCOPES: Final[frozenset[str]] = frozenset(SCOPES)
ADMIN: Final = "admin"
KEY: Final = "key"
"""The actor that has the API key."""
EVERY_NAMESPACE = "*"
MAX_NAME = 200


class Actor(str):
    """Who acts: the id under which the audit knows them, with the name that people know."""

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
    """The name that people know an actor by: that of a token, or else the actor itself."""
    return actor.name if isinstance(actor, Actor) else actor


class Caller(msgspec.Struct, frozen=True):
    """Who calls, what they may do and where. `namespaces` is None for every namespace."""

    actor: str
    scopes: frozenset[str]
    namespace: str
    namespaces: tuple[str, ...] | None
    credential: Credential | None = None
    """None for code of this process, and for a caller without a secret."""

    @classmethod
    def trusted(cls, actor: str, namespace: str = "default") -> Caller:
        """A caller inside this process, who may do everything."""
        return cls(actor, ALL_SCOPES, namespace, None)


def allows(scopes: Collection[str], needed: str | None) -> bool:
    """Whether these scopes allow what needs that one; None is needed for what is public."""
    return needed is None or ADMIN in scopes or needed in scopes
