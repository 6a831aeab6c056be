"""Tokens, namespaces and the audit of a database."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from functools import partial
from typing import Annotated, Any, TypeVar

from msgspec import Meta, structs

from perdure.access import model, operations
from perdure.access.authentication import Authentication
from perdure.access.base import Service
from perdure.access.endpoints import DELETE, GET, POST, call
from perdure.access.model import (
    MAX_LIFETIME,
    MAX_NAME,
    MAX_NAMESPACES,
    AuditPage,
    Caller,
    CreatedToken,
    Me,
    Scope,
    Token,
)
from perdure.access.tables import SYSTEM
from perdure.kernel.checks import Id, Limit, check_page, check_text
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import Forbidden, InvalidInput, NotFound
from perdure.kernel.retention import Retention
from perdure.kernel.storage.port import Operation, Storage

RETENTION_SECONDS = 3600.0
TOKEN_ID_DIGITS = 16
SYSTEM_ACTOR = "system"

T = TypeVar("T")
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class Access(Service):
    """The tokens of a database, and the record of who did what in it.

    A token is hashed, scoped, revocable, may expire, and there may be many at once: to rotate one, create the
    next, hand it out, and revoke the first. A caller reaches no namespace beyond its own.
    """

    def __init__(
        self,
        storage: Storage,
        authentication: Authentication | None = None,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.authentication = authentication or Authentication(storage)

    @property
    def _who(self) -> Caller:
        return self.caller or Caller.trusted(SYSTEM_ACTOR, self.namespace)

    def _reaches(self, namespaces: Collection[str]) -> bool:
        allowed = self._who.namespaces
        return allowed is None or set(namespaces) <= set(allowed)

    @call(GET("/me"), scope="read")
    async def whoami(self) -> Me:
        """Show the caller: its name, scopes and namespaces."""
        who = self._who
        return Me(
            actor=str(who.actor),
            scopes=sorted(who.scopes),
            namespace=who.namespace,
            namespaces=None if who.namespaces is None else list(who.namespaces),
        )

    # --- tokens -----------------------------------------------------------------------------------------

    @call(POST("/tokens"), scope="admin", status=201)
    async def create_token(
        self,
        name: Name,
        *,
        scopes: Annotated[list[Scope], Meta(min_length=1)] = ["read", "write", "worker"],  # noqa: B006
        namespaces: Annotated[list[Name], Meta(min_length=1, max_length=MAX_NAMESPACES)] | None = None,
        expires_in: Annotated[float, Meta(gt=0, le=MAX_LIFETIME)] | None = None,
        without_admin: bool = False,
    ) -> CreatedToken:
        """Create a token. Its secret is shown here once, and never again.

        After the first one every caller needs a token, so the first must have the scope `admin`, unless
        `without_admin` says that nobody needs to administer tokens.
        Without `namespaces` it is for the caller's own; `*` is every one. It takes no idempotency key: the
        answer holds the secret, which is not stored, so that no second call could give it. If the answer is
        lost, revoke the token and create another.
        """
        wanted = [self.namespace] if namespaces is None else namespaces
        token_id = self.storage.ids.hex(TOKEN_ID_DIGITS)
        secret = model.secret_of(token_id, secrets.token_urlsafe(32))
        token = model.new_token(
            token_id,
            secret,
            name=name,
            scopes=scopes,
            namespaces=wanted,
            expires_in=expires_in,
        )
        if not self._reaches(token.namespaces):
            raise Forbidden("a token cannot reach further than the one that creates it")
        added = await self._change(operations.create_token, token, without_admin)
        return CreatedToken(**structs.asdict(model.token_of(added.row)), secret=secret, first=added.first)

    @call(GET("/tokens"), scope="admin")
    async def list_tokens(self) -> list[Token]:
        """List all tokens, the oldest first; ended ones too."""
        rows = await self.storage.read(operations.list_tokens, ns=SYSTEM)
        return [token for token in map(model.token_of, rows) if self._reaches(token.namespaces)]

    @call(DELETE("/tokens/{token_id}"), scope="admin", status=200, errors=(NotFound,))
    async def revoke_token(self, token_id: Id) -> Token:
        """Revoke a token: in this process at once, in others within seconds."""
        check_text(token_id, "token_id")
        if self._who.namespaces is not None and token_id not in {
            token.token_id for token in await self.list_tokens()
        }:
            raise NotFound(f"Token {token_id} not found")
        return model.token_of(await self._change(operations.revoke_token, token_id))

    async def _change(self, operation: Operation[..., T], *args: Any) -> T:
        try:
            return await self.storage.run(operation, *args, ns=SYSTEM, actor=self._who.actor)
        finally:
            # Also after an error: it may have happened all the same.
            self.authentication.forget()

    # --- namespaces and the audit -----------------------------------------------------------------------

    @call(GET("/namespaces"), scope="admin")
    async def list_namespaces(self) -> list[str]:
        """List the namespaces that the caller reaches."""
        names = await self.storage.read(operations.list_namespaces)
        return sorted(name for name in names.values() if self._reaches([name]))

    @call(GET("/audit"), scope="admin")
    async def query_audit(
        self,
        *,
        namespace: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        limit: Limit = 100,
        before: Annotated[int, Meta(ge=0, le=operations.LAST_ID)] | None = None,
    ) -> AuditPage:
        """List the audit, the newest entry first; `before` of a page leads to the next one."""
        for what, value in (("namespace", namespace), ("actor", actor), ("action", action)):
            if value is not None:
                check_text(value, what)
        check_page(limit, 0)
        if before is not None and not _is_id(before):
            raise InvalidInput(f"before is {before!r}; it must be the id of an entry")
        if namespace is None and self._who.namespaces is not None:
            namespace = self.namespace
        if namespace is not None and not self._reaches([namespace]):
            raise Forbidden(f"this token does not reach the namespace {namespace!r}")
        asked = (namespace, actor, action, limit, before)
        rows = await self.storage.read(operations.query_audit, *asked, ns=SYSTEM)
        entries = [model.entry_of(row) for row in rows]
        is_full = bool(entries) and len(entries) == limit
        return AuditPage(items=entries, before=entries[-1].id if is_full else None)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= operations.LAST_ID


# --- what is kept, and for how long -----------------------------------------------------------------------


def start_retention(storage: Storage, retention: Retention) -> None:
    """Every hour drop what has had its time: entries of the audit, and idempotency keys."""
    storage.timers.every(RETENTION_SECONDS, partial(retain, storage, retention))


async def retain(storage: Storage, retention: Retention) -> None:
    """Drop what is older than it is kept, in chunks that let callers in between."""
    await _trim(storage, operations.trim_audit, retention.audit)
    await _trim(storage, operations.trim_keys, retention.keys)


async def _trim(storage: Storage, operation: Operation[..., int], seconds: float | None) -> None:
    if seconds is not None:
        age = to_micros(seconds)
        while await storage.background(operation, age, ns=SYSTEM) >= operations.TRIM_ROWS:
            pass
