"""Helpers for the tests of access: stores, raw rows, and older rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure import open_store
from perdure.access.authentication import CACHE_SECONDS, Authentication
from perdure.access.model import Token
from perdure.access.service import Access
from perdure.kernel.clock import to_micros
from perdure.kernel.storage.dialect import Statement, statement
from perdure.kernel.storage.port import Row, Storage, Tx
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.app import StoreApp
from perdure.service.audit import AuditEntry
from perdure.service.callers import Caller

__all__ = ["AccessHelper", "access_of", "age", "everything_stored", "open_engine", "rows_of"]

_AGE = (
    statement(
        "UPDATE tokens SET create_time = create_time - :age, expire_time = expire_time - :age,"
        " last_used_time = last_used_time - :age"
    ),
    statement(
        "UPDATE logins SET create_time = create_time - :age, last_used_time = last_used_time - :age,"
        " expire_time = expire_time - :age, end_time = end_time - :age"
    ),
    statement("UPDATE audit SET id = id - :age"),
    statement("UPDATE idempotency SET time = time - :age"),
)
_ROWS = {
    "tokens": statement("SELECT * FROM tokens"),
    "logins": statement("SELECT * FROM logins"),
    "audit": statement("SELECT * FROM audit"),
    "idempotency": statement("SELECT * FROM idempotency"),
    "rollouts": statement("SELECT * FROM rollouts"),
    "attempts": statement("SELECT * FROM attempts"),
}


class AccessHelper:
    """Tokens and audit of a database, with any actor for each call."""

    def __init__(self, given: Storage | Access, *, cache_seconds: float = CACHE_SECONDS) -> None:
        if not isinstance(given, Access):
            given = Access(given, Authentication(given, cache_seconds=cache_seconds))
        self.service = given
        self.authentication = given.authentication
        self.authenticate = self.authentication.authenticate
        self.is_closed = self.authentication.is_closed
        self.list_tokens = self.service.list_tokens

    async def create_token(self, name: Any, *, actor: str, **options: Any) -> tuple[Token, str]:
        """Create a token; return it as listed, and its secret."""
        service = self.service.acting_as(Caller.trusted(actor))
        created = await service.create_token(name, **{"without_admin": True, **options})
        fields = msgspec.structs.asdict(created)
        secret = fields.pop("secret")
        del fields["first"]
        return Token(**fields), secret

    async def revoke_token(self, token_id: str, *, actor: str) -> Token:
        return await self.service.acting_as(Caller.trusted(actor)).revoke_token(token_id)

    async def query_audit(self, **options: Any) -> list[AuditEntry]:
        return (await self.service.query_audit(**options)).items


def access_of(app: StoreApp) -> AccessHelper:
    return AccessHelper(app.services.access)


def open_engine(url: str) -> DatabaseLightningStore:
    return open_store(url, watchdog_interval=None)


async def _all(tx: Tx, sql: Statement[Any]) -> Sequence[Row]:
    return [tuple(row) for row in await tx.all(sql)]


async def rows_of(storage: Storage, table: str) -> Sequence[Row]:
    return await storage.read(_all, _ROWS[table])


async def everything_stored(storage: Storage) -> str:
    """Return all rows of access as one text."""
    return repr([await rows_of(storage, table) for table in ("tokens", "logins", "audit", "idempotency")])


async def _age(tx: Tx, seconds: float) -> None:
    for sql in _AGE:
        await tx.execute(sql, age=to_micros(seconds))


async def age(storage: Storage, seconds: float) -> None:
    """Make all rows of access `seconds` older."""
    await storage.run(_age, seconds)
