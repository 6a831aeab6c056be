"""Operations on tokens, logins and saved views.

An operation first locks the idempotency keys, in sorted order, and writes the audit entry last. In this
order, neither the keys nor the audit delay other transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.access import sql
from perdure.access.logins import LIFETIME, MOST_LOGINS, LoginMatch, LoginRow, NewLogin
from perdure.access.model import NewToken, TokenMatch, TokenRow
from perdure.access.views import MAX_VIEWS, ViewRow
from perdure.kernel import changes
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.storage.port import Tx
from perdure.service.audit import audit
from perdure.service.callers import ADMIN
from perdure.service.tables import TRIM_ROWS

KIND = "token"
TOKENS_CHANNEL = "access.tokens"
ANY_TOKEN = "any"  # noqa: S105 - the one key of the channel


# --- tokens, in the namespace of the system ---------------------------------------------------------------


class AddedToken(NamedTuple):
    """A stored token; `first` is true if it is the first one."""

    row: TokenRow
    first: bool


async def create_token(tx: Tx, token: NewToken, without_admin: bool) -> AddedToken:
    """Store a token. The first one needs the scope admin, unless `without_admin` is set."""
    first = not await any_token(tx)
    if first and not without_admin and ADMIN not in token.scopes:
        raise InvalidInput(
            "the first token needs the scope admin. From then on every caller needs a token, and only "
            "an admin can create or revoke tokens. Add the scope, or confirm with without_admin (--yes)"
        )
    row = TokenRow(
        id=token.token_id,
        hash=token.hash,
        name=token.name,
        scopes=token.encoded_scopes,
        namespaces=token.encoded_namespaces,
        create_time=tx.wall,
        expire_time=None if token.lifetime is None else tx.wall + token.lifetime,
        revoke_time=None,
        last_used_time=None,
    )
    await tx.write(sql.ADD_TOKENS.of([row]))
    await audit(tx, "create_token", [token.token_id])
    tx.hint(TOKENS_CHANNEL, ANY_TOKEN)
    changes.tell(tx, KIND, [(token.token_id, "added")])
    return AddedToken(row, first)


async def revoke_token(tx: Tx, token_id: str) -> TokenRow:
    """Revoke a token; an earlier revocation stays unchanged."""
    row = await tx.one(sql.LOCK_TOKEN, id=token_id)
    if row is None:
        raise NotFound(f"Token {token_id} not found")
    if row.revoke_time is None:
        await tx.execute(sql.REVOKE_TOKEN, id=token_id)
        await audit(tx, "revoke_token", [token_id])
        row = row._replace(revoke_time=tx.wall)
        changes.tell(tx, KIND, [(token_id, "revoked")])
    tx.hint(TOKENS_CHANNEL, ANY_TOKEN)
    return row


async def find_tokens(tx: Tx, token_ids: Sequence[str]) -> list[TokenMatch | None]:
    """Return the tokens with these ids, and the database's time."""
    rows = await tx.all(sql.FIND_TOKENS, ids=list(set(token_ids)))
    matches = {row.id: TokenMatch(row, tx.wall) for row in rows}
    return [matches.get(token_id) for token_id in token_ids]


async def list_tokens(tx: Tx, created: int, last: str, limit: int) -> list[TokenRow]:
    """Return the next tokens after a position, oldest first."""
    return await tx.all(sql.LIST_TOKENS, created=created, last=last, n=limit)


async def any_token(tx: Tx) -> bool:
    """Return whether a token was ever created; ended tokens count too."""
    return await tx.one(sql.ANY_TOKEN) is not None


async def use_token(tx: Tx, token_id: str, interval: int) -> None:
    """Record the use of a token, unless a use was recorded within `interval` microseconds."""
    await tx.execute(sql.USE_TOKEN, id=token_id, before=tx.wall - interval)


# --- logins, in the namespace of the system ---------------------------------------------------------------


async def create_login(tx: Tx, login: NewLogin) -> None:
    """Store a login. If the credential has too many logins, the oldest ones end."""
    end = tx.wall + to_micros(LIFETIME)
    row = LoginRow(
        id=login.id,
        hash=login.hash,
        credential=login.credential,
        proof=login.proof,
        create_time=tx.wall,
        last_used_time=tx.wall,
        idle=login.idle,
        expire_time=min(tx.wall + login.idle, end),
        end_time=end,
    )
    await tx.write(sql.ADD_LOGINS.of([row]))
    await tx.execute(sql.DROP_OLD_LOGINS, credential=login.credential, n=MOST_LOGINS)
    await audit(tx, "login", [login.id])


async def end_login(tx: Tx, login_id: str, secret_hash: str) -> None:
    """Delete a login if it exists."""
    if await tx.execute(sql.DROP_LOGIN, id=login_id, hash=secret_hash):
        await audit(tx, "logout", [login_id])
        tx.hint(TOKENS_CHANNEL, ANY_TOKEN)


async def find_logins(tx: Tx, login_ids: Sequence[str]) -> list[LoginMatch | None]:
    """Find logins by id, with their tokens and the database's time."""
    rows = {row.id: row for row in await tx.all(sql.FIND_LOGINS, ids=list(set(login_ids)))}
    credentials = [row.credential for row in rows.values() if not row.proof]
    tokens = dict(zip(credentials, await find_tokens(tx, credentials), strict=True)) if credentials else {}
    logins = {row.id: LoginMatch(row, tokens.get(row.credential), tx.wall) for row in rows.values()}
    return [logins.get(login_id) for login_id in login_ids]


async def use_login(tx: Tx, row: LoginRow) -> None:
    """Extend a login that is used."""
    expire = min(tx.wall + row.idle, row.end_time)
    await tx.execute(sql.USE_LOGIN, id=row.id, expire=expire, before=tx.wall - row.use_interval)


async def trim_logins(tx: Tx, _age: int) -> int:
    """Delete some expired logins; return how many."""
    return await tx.execute(sql.TRIM_LOGINS, n=TRIM_ROWS)


# --- saved views ------------------------------------------------------------------------------------------


async def save_view(tx: Tx, owner: str, screen: str, name: str, query: str) -> ViewRow:
    """Save a view, or replace the one with its screen and name."""
    row = ViewRow(owner, screen, name, query, tx.wall)
    await tx.write(sql.SAVE_VIEWS.of([row]))
    if (await tx.one(sql.COUNT_VIEWS, owner=owner) or 0) > MAX_VIEWS:
        raise Conflict(f"there are {MAX_VIEWS} saved views already; delete one first")
    await audit(tx, "save_view", [name])
    changes.tell(tx, "view", [(name, "saved")])
    return row


async def list_views(tx: Tx, owners: Sequence[str]) -> list[ViewRow]:
    """Return the views of some owners, by screen and name."""
    return await tx.all(sql.LIST_VIEWS, owners=list(owners), n=2 * MAX_VIEWS)


async def delete_view(tx: Tx, owner: str, screen: str, name: str) -> None:
    """Delete a view."""
    if not await tx.execute(sql.DROP_VIEW, owner=owner, screen=screen, name=name):
        raise NotFound(f"View {name} of {screen} not found")
    await audit(tx, "delete_view", [name])
    changes.tell(tx, "view", [(name, "deleted")])
