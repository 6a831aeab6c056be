"""Tokens, callers and the audit: what they are, and the rules that need neither a clock nor a database."""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any, Final, Literal, NamedTuple, get_args, overload

import msgspec

from perdure.kernel.checks import check_name
from perdure.kernel.clock import to_micros, to_seconds, to_seconds_or_none
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.record import Record

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
MAX_NAMESPACES = 100
MAX_LIFETIME = 1e9
"""The longest life of a token that expires, in seconds: some thirty years."""
NAMED_OBJECTS = 20
"""How many ids of a batch an audit entry names; it counts them all."""

_SECRET = re.compile(r"pdr_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")


class Actor(str):
    """Who acts: the id under which the audit knows them, with the name that people know."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, id: str, name: str) -> Actor:
        actor = super().__new__(cls, id)
        actor.name = name
        return actor


@overload
def name_of(actor: str) -> str: ...
@overload
def name_of(actor: None) -> None: ...
def name_of(actor: str | None) -> str | None:
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


class Token(Record, kw_only=True):
    """A token as it may be shown: all but its secret, which nobody knows but its owner."""

    token_id: str
    name: str
    scopes: list[str]
    namespaces: list[str]
    """Names of namespaces, or `*` for every one."""
    create_time: float
    expire_time: float | None = None
    revoke_time: float | None = None
    last_used_time: float | None = None


class AuditEntry(Record, kw_only=True):
    """One transaction of one actor: what was done to which objects."""

    id: int
    """Its place in the audit: a later entry has a larger one."""
    time: float
    namespace: str | None
    """None for what concerns the whole database, such as tokens."""
    actor: str
    action: str
    object: str
    """The id of what was changed; of a batch, the first few ids, separated by commas."""
    count: int
    """How many changes the transaction made."""


class CreatedToken(Token, kw_only=True):
    """A token with its secret, which is shown once."""

    secret: str
    first: bool = False
    """Whether every caller needs a token from now on, because it is the first and there is no API key."""


class AuditPage(msgspec.Struct, kw_only=True):
    """Entries of the audit, the newest first. `before` leads to the next page; null on the last one."""

    items: list[AuditEntry]
    before: int | None


class Me(msgspec.Struct, kw_only=True):
    """The caller. `namespaces` is null where every namespace is allowed."""

    actor: str
    scopes: list[str]
    namespace: str
    namespaces: list[str] | None


class NewToken(msgspec.Struct, frozen=True):
    """A token that is to be made, checked; only the hash of its secret is here."""

    token_id: str
    hash: str
    name: str
    scopes: tuple[str, ...]
    namespaces: tuple[str, ...]
    lifetime: int | None
    encoded_scopes: str
    encoded_namespaces: str


# --- scopes and lives -------------------------------------------------------------------------------------


def allows(scopes: Collection[str], needed: str | None) -> bool:
    """Whether these scopes allow what needs that one; None is needed for what is public."""
    return needed is None or ADMIN in scopes or needed in scopes


def is_live(token: Token, now: float) -> bool:
    """Whether a token is neither revoked nor expired."""
    return token.revoke_time is None and (token.expire_time is None or now < token.expire_time)


# --- secrets ----------------------------------------------------------------------------------------------


def secret_of(token_id: str, chance: str) -> str:
    """What a token's owner keeps: its id, and 43 characters that nobody can guess."""
    return "pdr_" + token_id + "_" + chance


def token_id_of(secret: str) -> str | None:
    """The id inside a secret, or None if it is not one of ours."""
    match = _SECRET.fullmatch(secret)
    return match.group(1) if match else None


def hash_of(secret: str) -> str:
    """What is stored of a secret. It is long and random, so that no slow hash is needed."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def fits(secret_hash: str, stored_hash: str) -> bool:
    """Compare in a time that does not tell how much of it is right."""
    return hmac.compare_digest(secret_hash, stored_hash)


# --- what callers give ------------------------------------------------------------------------------------


def new_token(
    token_id: str,
    secret: str,
    *,
    name: Any,
    scopes: Any,
    namespaces: Any,
    expires_in: Any,
) -> NewToken:
    """Check what is asked for."""
    allowed = _check_scopes(_texts(scopes, "scopes"))
    reached = _check_namespaces(_texts(namespaces, "namespaces"))
    return NewToken(
        token_id=token_id,
        hash=hash_of(secret),
        name=check_name(name, "name", max_length=MAX_NAME),
        scopes=allowed,
        namespaces=reached,
        lifetime=None if expires_in is None else _lifetime(expires_in),
        encoded_scopes=encode_json(allowed),
        encoded_namespaces=encode_json(reached),
    )


def _texts(values: Any, what: str) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Collection) or not values:
        raise InvalidInput(f"{what} must be a list of at least one name")
    return tuple(dict.fromkeys(check_name(value, what, max_length=MAX_NAME) for value in values))


def _check_scopes(scopes: tuple[str, ...]) -> tuple[str, ...]:
    for scope in scopes:
        if scope not in ALL_SCOPES:
            raise InvalidInput(f"scopes are {', '.join(SCOPES)}, not {scope!r}")
    return scopes


def _check_namespaces(namespaces: tuple[str, ...]) -> tuple[str, ...]:
    if len(namespaces) > MAX_NAMESPACES:
        raise InvalidInput(f"a token has at most {MAX_NAMESPACES} namespaces; {EVERY_NAMESPACE} is every one")
    return (EVERY_NAMESPACE,) if EVERY_NAMESPACE in namespaces else namespaces


def _lifetime(seconds: Any) -> int:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and isfinite(seconds)
    if not number or not 0 < seconds <= MAX_LIFETIME:
        raise InvalidInput(f"expires_in must be a number of seconds above 0, not {seconds!r}")
    return to_micros(seconds)


# --- rows -------------------------------------------------------------------------------------------------


class NamespaceRow(NamedTuple):
    """A namespace as it is stored."""

    id: int
    name: str
    create_time: int


class TokenRow(NamedTuple):
    """A token as it is stored. Times are microseconds."""

    id: str
    hash: str
    name: str
    scopes: str
    """JSON."""
    namespaces: str
    """JSON."""
    create_time: int
    expire_time: int | None
    revoke_time: int | None
    last_used_time: int | None


class FoundToken(NamedTuple):
    """A token, and the time by the database."""

    row: TokenRow
    now: int


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


def token_of(row: TokenRow) -> Token:
    """A token as it may be shown."""
    return Token(
        token_id=row.id,
        name=row.name,
        scopes=decode_json(row.scopes),
        namespaces=decode_json(row.namespaces),
        create_time=to_seconds(row.create_time),
        expire_time=to_seconds_or_none(row.expire_time),
        revoke_time=to_seconds_or_none(row.revoke_time),
        last_used_time=to_seconds_or_none(row.last_used_time),
    )


def entry_of(row: AuditRow) -> AuditEntry:
    """An audit entry as callers see it."""
    return AuditEntry(
        id=row.id,
        time=to_seconds(row.id),
        namespace=row.namespace,
        actor=row.actor,
        action=row.action,
        object=row.object,
        count=row.count,
    )


def objects_text(objects: Sequence[str]) -> str:
    """The ids that an entry names: the first few of them, each once."""
    return ",".join(list(dict.fromkeys(objects))[:NAMED_OBJECTS])


# --- answers under idempotency keys -----------------------------------------------------------------------


class StoredAnswer(msgspec.Struct, frozen=True):
    """The answer to an earlier call under the same key, still encoded."""

    text: str


def encode_answer(answer: Any) -> str:
    """An answer as it is stored: its rows as lists. Bodies in it are text already, so this is quick."""
    return msgspec.json.encode(answer, enc_hook=tuple).decode()


def decode_answers(answers: Sequence[Any], kind: Any = Any) -> list[Any]:
    """Answers of which some may be stored ones, which are decoded as `kind`."""
    return [
        msgspec.json.decode(answer.text, type=kind) if isinstance(answer, StoredAnswer) else answer
        for answer in answers
    ]
