"""Logins of the dashboard: a random secret in a cookie, and a row that ends with the logout.

The row holds hashes only. A login counts while its credential does: a token until it expires or is revoked,
the API key and the local secret until they change.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import Final, NamedTuple

from perdure.access.model import Token, TokenMatch

LIFETIME: Final = 7 * 24 * 3600
"""Seconds after which a login ends, also one that is used."""
MOST_LOGINS: Final = 100
"""How many logins of one credential there may be; the oldest one ends for a new one."""
USE_SECONDS: Final = 60.0
"""How often a use is written down, at most; of a short `login_idle_timeout`, four times within it."""

_SECRET = re.compile(r"pdl_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")


class LoginRow(NamedTuple):
    """A login as it is stored. Times are microseconds."""

    id: str
    hash: str
    credential: str
    """The id of a token, `key` or `local`."""
    proof: str
    """What the key or the local secret gives together with the secret of the login; empty for a token."""
    create_time: int
    last_used_time: int
    idle: int
    expire_time: int
    end_time: int

    @property
    def use_interval(self) -> int:
        """The microseconds that pass between two uses that are written down."""
        return min(int(USE_SECONDS * 1_000_000), self.idle // 4)


class NewLogin(NamedTuple):
    """A login that is to be stored."""

    id: str
    hash: str
    credential: str
    proof: str
    idle: int
    """Microseconds without a request after which it expires."""


class LoginMatch(NamedTuple):
    """A login, its token if it has one, and the time by the database."""

    row: LoginRow
    token: TokenMatch | None
    now: int


class Login(NamedTuple):
    """A login that counts, if the key or the local secret still fits `proof`."""

    login_id: str
    credential: str
    proof: str
    token: Token | None


def build_login_secret(login_id: str, chance: str) -> str:
    """Return what the browser keeps: the id of a login, and 43 characters that nobody can guess."""
    return "pdl_" + login_id + "_" + chance


def parse_login_id(secret: str) -> str | None:
    """Return the id inside the secret of a login, or None if it is none."""
    match = _SECRET.fullmatch(secret)
    return match.group(1) if match else None


def prove(login_secret: str, credential_secret: str) -> str:
    """Bind a login to the key that it began with.

    The key cannot be guessed from this: the secret of the login, which is random, is stored nowhere.
    """
    key = login_secret.encode("utf-8", "surrogatepass")
    return hmac.new(key, credential_secret.encode("utf-8", "surrogatepass"), sha256).hexdigest()
