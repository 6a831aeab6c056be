"""Tokens and callers, with the rules that need neither a clock nor a database."""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection
from hashlib import sha256
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from perdure.kernel.checks import check_name
from perdure.kernel.clock import to_micros, to_seconds, to_seconds_or_none
from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.record import Record
from perdure.service.callers import ALL_SCOPES, EVERY_NAMESPACE, MAX_NAME, SCOPES

MAX_NAMESPACES = 100
MAX_LIFETIME = 1e9
"""Longest lifetime of a token that expires, in seconds: about 30 years."""

_SECRET = re.compile(r"pdr_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")


class Token(Record, kw_only=True):
    """A token without its secret, which only its owner has."""

    token_id: str
    name: str
    scopes: list[str]
    namespaces: list[str]
    """Names of namespaces, or `*` for all."""
    create_time: float
    expire_time: float | None = None
    revoke_time: float | None = None
    last_used_time: float | None = None


class CreatedToken(Token, kw_only=True):
    """A token with its secret, which is shown once."""

    secret: str
    first: bool = False
    """True if every caller needs a token from now on: it is the first one, and there is no API key."""


class Me(msgspec.Struct, kw_only=True):
    """The caller. `namespaces` is null if all namespaces are allowed."""

    actor: str
    scopes: list[str]
    namespace: str
    namespaces: list[str] | None


class NewToken(msgspec.Struct, frozen=True):
    """A checked token to create, with only the hash of its secret."""

    token_id: str
    hash: str
    name: str
    scopes: tuple[str, ...]
    namespaces: tuple[str, ...]
    lifetime: int | None
    encoded_scopes: str
    encoded_namespaces: str


# --- validity ---------------------------------------------------------------------------------------------


def is_live(token: Token, now: float) -> bool:
    """Return whether a token is neither revoked nor expired."""
    return token.revoke_time is None and (token.expire_time is None or now < token.expire_time)


# --- secrets ----------------------------------------------------------------------------------------------


def build_secret(token_id: str, chance: str) -> str:
    """Return the secret for a token's owner: the id, and 43 random characters."""
    return "pdr_" + token_id + "_" + chance


def parse_token_id(secret: str) -> str | None:
    """Return the id inside a secret, or None for any other text."""
    match = _SECRET.fullmatch(secret)
    return match.group(1) if match else None


def hash_secret(secret: str) -> str:
    """Hash a secret for storage. Secrets are long and random, so a fast hash is safe."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def fits(secret_hash: str, stored_hash: str) -> bool:
    """Compare hashes in constant time."""
    return hmac.compare_digest(secret_hash, stored_hash)


# --- arguments --------------------------------------------------------------------------------------------


def new_token(
    token_id: str,
    secret: str,
    *,
    name: Any,
    scopes: Any,
    namespaces: Any,
    expires_in: Any,
) -> NewToken:
    """Check the arguments of a new token."""
    allowed = _check_scopes(_check_texts(scopes, "scopes"))
    reached = _check_namespaces(_check_texts(namespaces, "namespaces"))
    return NewToken(
        token_id=token_id,
        hash=hash_secret(secret),
        name=check_name(name, "name", max_length=MAX_NAME),
        scopes=allowed,
        namespaces=reached,
        lifetime=None if expires_in is None else _lifetime(expires_in),
        encoded_scopes=encode_json(allowed),
        encoded_namespaces=encode_json(reached),
    )


def _check_texts(values: Any, what: str) -> tuple[str, ...]:
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


class TokenRow(NamedTuple):
    """A token as stored. Times are microseconds."""

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


class TokenMatch(NamedTuple):
    """A token, and the database's time."""

    row: TokenRow
    now: int


def row_to_token(row: TokenRow) -> Token:
    """Convert a row to a token without its secret."""
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


# --- answers under idempotency keys -----------------------------------------------------------------------
