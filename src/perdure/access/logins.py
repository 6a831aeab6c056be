"""Logins of the dashboard: a random secret in a cookie, and a row that is deleted at logout.

The row holds only hashes. A login is valid while its credential is: a token until it expires or is revoked,
the API key and the local secret until they change.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import Final, NamedTuple

from perdure.access.model import Token, TokenMatch

LIFETIME: Final = 7 * 24 * 3600
"""Seconds after which a login ends even if it is used."""
MOST_LOGINS: Final = 100
"""Maximum number of logins per credential; a new login ends the oldest one."""
USE_SECONDS: Final = 60.0
"""Minimum seconds between recorded uses; with a short `login_idle_timeout`, a quarter of it."""

_SECRET = re.compile(r"pdl_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")


class LoginRow(NamedTuple):
    """A login as stored. Times are microseconds."""

    id: str
    hash: str
    credential: str
    """Id of a token, `key` or `local`."""
    proof: str
    """HMAC of the key or the local secret under the login's secret; empty for a token."""
    create_time: int
    last_used_time: int
    idle: int
    expire_time: int
    end_time: int

    @property
    def use_interval(self) -> int:
        """Minimum microseconds between two recorded uses."""
        return min(int(USE_SECONDS * 1_000_000), self.idle // 4)


class NewLogin(NamedTuple):
    """A login to store."""

    id: str
    hash: str
    credential: str
    proof: str
    idle: int
    """Microseconds without a request after which it expires."""


class LoginMatch(NamedTuple):
    """A login, its token if it has one, and the database's time."""

    row: LoginRow
    token: TokenMatch | None
    now: int


class Login(NamedTuple):
    """A login, valid if the current key or local secret matches `proof`."""

    login_id: str
    credential: str
    proof: str
    token: Token | None


def build_login_secret(login_id: str, chance: str) -> str:
    """Return the secret for the browser: the id of a login, and 43 random characters."""
    return "pdl_" + login_id + "_" + chance


def parse_login_id(secret: str) -> str | None:
    """Return the id inside the secret of a login, or None for any other text."""
    match = _SECRET.fullmatch(secret)
    return match.group(1) if match else None


def prove(login_secret: str, credential_secret: str) -> str:
    """Bind a login to the key that it started with.

    The key cannot be derived from the result, because the random secret of the login is not stored.
    """
    key = login_secret.encode("utf-8", "surrogatepass")
    return hmac.new(key, credential_secret.encode("utf-8", "surrogatepass"), sha256).hexdigest()
