"""`perdure token`: access tokens."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import id_argument
from perdure.cli.shell.options import (
    CommandContext,
    CommandGroup,
    LimitOption,
    duration,
    flag,
    parse_choices,
    text,
)
from perdure.cli.shell.output import ago, human_duration
from perdure.cli.shell.results import listing, pages

if TYPE_CHECKING:
    from perdure.access.model import Token

EMPTY = """No tokens yet: local callers need none. After the first token is created, every caller needs one:

  perdure token create my-laptop --scope admin"""
COLUMNS = ("token_id", "name", "scopes", "namespaces", "created", "last used", "state")
DEFAULT_SCOPES = ("read", "write", "worker")

app = CommandGroup("Create, list and revoke access tokens.")


@app.client_command("create")
async def create_token(
    context: CommandContext,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name to show in the list and the audit log.")],
    scope: Annotated[
        list[str] | None,
        text(
            "SCOPE",
            "Scope: read, write, worker or admin; repeatable (default: read, write, worker).",
            "--scope",
            "-s",
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        text("NAME", "Namespace to allow; repeatable (default: default; * for all).", "--namespace", "-n"),
    ] = None,
    expires: Annotated[float | None, duration("Time until it expires")] = None,
    yes: Annotated[bool, flag("--yes", help="Create the first token without the scope admin.")] = False,
) -> None:
    """Create a token and print its secret, which is shown only once.

    After the first token is created, every caller needs one; so it must have the scope admin, unless the
    server has an API key.
    """
    from perdure.service.callers import SCOPES

    scopes = parse_choices(scope or DEFAULT_SCOPES, SCOPES, "--scope")
    has_key = context.target.database is not None and _has_key()
    async with context.connect(create=True) as connection:
        created = await connection.access.create_token(
            name,
            scopes=scopes or [],
            namespaces=namespace,
            expires_in=expires,
            without_admin=yes or has_key,
        )
    context.answer(created, created.secret)
    if not context.as_json:
        typer.echo(
            f"Created token {created.token_id} ({', '.join(created.scopes)}). Save the secret above: "
            "only its hash is stored, and it cannot be shown again. Use it with PERDURE_TOKEN, --token or "
            "the header Authorization: Bearer.",
            err=True,
        )
        if created.first and not has_key:
            typer.echo("It is the first token: from now on, every caller needs one.", err=True)


def _has_key() -> bool:
    """Return whether the settings of this directory have an API key."""
    from perdure.kernel.config import load_settings

    return load_settings().api_key is not None


@app.client_command("list")
async def list_tokens(context: CommandContext, limit: LimitOption = 100) -> None:
    """List tokens, oldest first, including expired and revoked ones."""
    async with context.connect() as connection:
        tokens = await pages(
            lambda limit, cursor: connection.access.list_tokens(limit=limit, cursor=cursor), limit
        )
    listing(context, tokens, COLUMNS, _row, noun="tokens", empty=EMPTY)


def _row(token: Token) -> tuple[Any, ...]:
    return (
        token.token_id,
        token.name,
        ",".join(token.scopes),
        ",".join(token.namespaces),
        ago(token.create_time),
        ago(token.last_used_time),
        _state(token),
    )


def _state(token: Token) -> str:
    if token.revoke_time is not None:
        return f"revoked {ago(token.revoke_time)}"
    if token.expire_time is None:
        return "active"
    left = token.expire_time - time.time()
    return f"active, expires in {human_duration(left)}" if left > 0 else f"expired {ago(token.expire_time)}"


@app.client_command("revoke")
async def revoke_token(
    context: CommandContext, token_id: Annotated[str, id_argument("TOKEN_ID", "token")]
) -> None:
    """Revoke a token; servers reject it within a few seconds."""
    async with context.connect() as connection:
        revoked = await connection.access.revoke_token(token_id)
    context.answer(revoked, f"Revoked token {token_id} ({revoked.name}).")
