"""Tokens, namespaces and the audit of a database."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from functools import partial
from typing import Annotated, Any, TypeVar

from msgspec import Meta, structs

from perdure.access import model, operations
from perdure.access.authentication import Authentication
from perdure.access.logins import NewLogin, build_login_secret, parse_login_id, prove
from perdure.access.model import MAX_LIFETIME, MAX_NAMESPACES, CreatedToken, Me, Token, TokenRow
from perdure.access.views import (
    MAX_QUERY,
    MAX_SCREEN,
    MAX_VIEW_NAME,
    SHARED,
    SavedView,
    Screen,
    ViewName,
    ViewQuery,
    row_to_saved_view,
)
from perdure.kernel.checks import Id, Limit, check_flag, check_name, check_page, check_text
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound
from perdure.kernel.pages import Keyset, Part
from perdure.kernel.retention import Retention
from perdure.kernel.storage.port import Operation, Storage
from perdure.service.audit import LAST_ID, AuditPage, query_audit, row_to_audit_entry, trim_audit
from perdure.service.base import Service
from perdure.service.callers import KEY, MAX_NAME, Caller, Scope
from perdure.service.endpoints import DELETE, GET, POST, PUT, call
from perdure.service.idempotency import trim_keys
from perdure.service.namespaces import list_namespaces
from perdure.service.tables import SYSTEM, TRIM_ROWS

RETENTION_SECONDS = 3600.0
TOKEN_ID_DIGITS = 16
SYSTEM_ACTOR = "system"
_TOKENS = Keyset[TokenRow, tuple[int, str]]("tokens", (-1, ""), lambda row: (row.create_time, row.id))
_NAMESPACES = Keyset[str, tuple[str]]("namespaces", ("",), lambda name: (name,))

T = TypeVar("T")
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class Access(Service):
    """The tokens of a database, and its audit.

    Tokens are hashed, scoped and revocable, may expire, and may overlap: to rotate a token, create the next
    one, distribute it, and revoke the first. Callers reach only their own namespaces.
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
    def _acting(self) -> Caller:
        return self.caller or Caller.trusted(SYSTEM_ACTOR, self.namespace)

    def _reaches(self, namespaces: Collection[str]) -> bool:
        allowed = self._acting.namespaces
        return allowed is None or set(namespaces) <= set(allowed)

    @call(GET("/me"), scope="read")
    async def whoami(self) -> Me:
        """Show the caller: its name, scopes and namespaces."""
        caller = self._acting
        return Me(
            actor=str(caller.actor),
            scopes=sorted(caller.scopes),
            namespace=caller.namespace,
            namespaces=None if caller.namespaces is None else list(caller.namespaces),
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
        """Create a token. Its secret is shown only in this answer.

        After the first token every caller needs one, so the first must have the scope `admin`, unless
        `without_admin` confirms that tokens need no administration. A caller with the API key needs neither.
        Without `namespaces` the token is for the caller's own; `*` is for all. There is no idempotency key:
        the answer holds the secret, which is not stored, so a second call could not repeat it. If the answer
        is lost, revoke the token and create another one.
        """
        wanted = [self.namespace] if namespaces is None else namespaces
        token_id = self.storage.ids.hex(TOKEN_ID_DIGITS)
        secret = model.build_secret(token_id, secrets.token_urlsafe(32))
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
        # With an API key, callers needed a secret before, and the key administers tokens.
        has_key = self._acting.credential is not None and self._acting.actor == KEY
        added = await self._run_change(operations.create_token, token, without_admin or has_key)
        first = added.first and not has_key
        return CreatedToken(**structs.asdict(model.row_to_token(added.row)), secret=secret, first=first)

    @call(GET("/tokens"), scope="admin")
    async def list_tokens(self, *, limit: Limit = 100, cursor: str | None = None) -> Part[Token]:
        """List tokens, oldest first, including ended ones. `next` is the cursor of the next page."""
        request = _TOKENS.open_part(limit, cursor)
        place = request.place
        reachable: list[TokenRow] = []
        while len(reachable) < request.rows:
            size = request.rows - len(reachable)
            rows = await self.storage.read(operations.list_tokens, *place, size, ns=SYSTEM)
            reachable += [row for row in rows if self._reaches(model.row_to_token(row).namespaces)]
            if len(rows) < size:
                break
            place = (rows[-1].create_time, rows[-1].id)
        return request.build_part(reachable, model.row_to_token)

    @call(DELETE("/tokens/{token_id}"), scope="admin", status=200, errors=(NotFound,))
    async def revoke_token(self, token_id: Id) -> Token:
        """Revoke a token: in this process at once, in other processes within seconds."""
        check_text(token_id, "token_id")
        if self._acting.namespaces is not None:
            (match,) = await self.storage.read(operations.find_tokens, [token_id], ns=SYSTEM)
            if match is None or not self._reaches(model.row_to_token(match.row).namespaces):
                raise NotFound(f"Token {token_id} not found")
        return model.row_to_token(await self._run_change(operations.revoke_token, token_id))

    # --- logins -----------------------------------------------------------------------------------------

    async def log_in(self, credential_secret: str, idle_seconds: float) -> str:
        """Start a login of the caller with this credential; return the secret for the cookie.

        There is no endpoint: only the server sets cookies.
        """
        caller = self._acting
        login_id = self.storage.ids.hex(TOKEN_ID_DIGITS)
        secret = build_login_secret(login_id, secrets.token_urlsafe(32))
        is_token = model.parse_token_id(credential_secret) == caller.actor
        login = NewLogin(
            id=login_id,
            hash=model.hash_secret(secret),
            credential=str(caller.actor),
            proof="" if is_token else prove(secret, credential_secret),
            idle=to_micros(idle_seconds),
        )
        await self.storage.run(operations.create_login, login, ns=SYSTEM, actor=caller.actor)
        return secret

    async def log_out(self, secret: str) -> None:
        """End the login with this secret: in this process at once, in other processes within seconds."""
        login_id = parse_login_id(secret)
        if login_id is not None:
            await self._run_change(operations.end_login, login_id, model.hash_secret(secret))

    # --- saved views --------------------------------------------------------------------------------------

    @call(GET("/views"), scope="read")
    async def list_views(self) -> list[SavedView]:
        """List the saved views of the namespace and the caller's own, by screen and name."""
        return [row_to_saved_view(row) for row in await self.read(operations.list_views, [SHARED, self._own])]

    @call(PUT("/views"), scope="write", errors=(Conflict,))
    async def save_view(
        self, name: ViewName, screen: Screen, query: ViewQuery = "", *, shared: bool = True
    ) -> SavedView:
        """Save the view of a screen under a name, for all callers of the namespace or only for the caller.

        It replaces a view with the same screen and name. At most 200 views are shared, and 200 per caller.
        """
        check_name(name, "name", max_length=MAX_VIEW_NAME)
        check_name(screen, "screen", max_length=MAX_SCREEN)
        check_text(query, "query", max_length=MAX_QUERY)
        owner = SHARED if check_flag(shared, "shared") else self._own
        return row_to_saved_view(await self.write(operations.save_view, owner, screen, name, query))

    @call(DELETE("/views"), scope="write", errors=(NotFound,))
    async def delete_view(self, *, name: ViewName, screen: Screen, shared: bool = True) -> None:
        """Delete a saved view."""
        owner = SHARED if check_flag(shared, "shared") else self._own
        screen, name = check_text(screen, "screen"), check_text(name, "name")
        await self.write(operations.delete_view, owner, screen, name)

    @property
    def _own(self) -> str:
        """Owner of the caller's own views."""
        return str(self._acting.actor)

    async def _run_change(self, operation: Operation[..., T], *args: Any) -> T:
        try:
            return await self.storage.run(operation, *args, ns=SYSTEM, actor=self._acting.actor)
        finally:
            # Also after an error, because the change may have been committed.
            self.authentication.forget()

    # --- namespaces and the audit -----------------------------------------------------------------------

    @call(GET("/namespaces"), scope="admin")
    async def list_namespaces(self, *, limit: Limit = 100, cursor: str | None = None) -> Part[str]:
        """List the namespaces that the caller reaches, by name. `next` is the cursor of the next page."""
        request = _NAMESPACES.open_part(limit, cursor)
        (last,) = request.place
        names = await self.storage.read(list_namespaces)
        reachable = sorted(name for name in names.values() if name > last and self._reaches([name]))
        return request.build_part(reachable, str)

    @call(GET("/audit"), scope="admin")
    async def query_audit(
        self,
        *,
        namespace: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        limit: Limit = 100,
        before: Annotated[int, Meta(ge=0, le=LAST_ID)] | None = None,
    ) -> AuditPage:
        """List the audit, newest entry first; pass `before` of a page to get the next one."""
        for what, value in (("namespace", namespace), ("actor", actor), ("action", action)):
            if value is not None:
                check_text(value, what)
        check_page(limit, 0)
        if before is not None and not _is_id(before):
            raise InvalidInput(f"before is {before!r}; it must be the id of an entry")
        if namespace is None and self._acting.namespaces is not None:
            namespace = self.namespace
        if namespace is not None and not self._reaches([namespace]):
            raise Forbidden(f"this token does not reach the namespace {namespace!r}")
        asked = (namespace, actor, action, limit, before)
        rows = await self.storage.read(query_audit, *asked, ns=SYSTEM)
        entries = [row_to_audit_entry(row) for row in rows]
        is_full = bool(entries) and len(entries) == limit
        return AuditPage(items=entries, before=entries[-1].id if is_full else None)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LAST_ID


# --- retention --------------------------------------------------------------------------------------------


def start_retention(storage: Storage, retention: Retention) -> None:
    """Delete old entries of the audit, idempotency keys and expired logins, every hour."""
    storage.timers.every(RETENTION_SECONDS, partial(retain, storage, retention))


async def retain(storage: Storage, retention: Retention) -> None:
    """Delete expired rows in chunks, so that callers' operations run in between."""
    await _trim(storage, trim_audit, retention.audit)
    await _trim(storage, trim_keys, retention.keys)
    await _trim(storage, operations.trim_logins, 0.0)


async def _trim(storage: Storage, operation: Operation[..., int], seconds: float | None) -> None:
    if seconds is not None:
        age = to_micros(seconds)
        while await storage.background(operation, age, ns=SYSTEM) >= TRIM_ROWS:
            pass
