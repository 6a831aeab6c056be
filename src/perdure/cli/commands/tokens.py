"""`perdure token`: who may come in."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.shell.options import CommandContext, DurationOption, at_desk
from perdure.cli.shell.output import ago, make_table

EMPTY = """No tokens yet, and callers on this machine need none. From the first token on everyone needs one:

  perdure token create my-laptop"""

app = typer.Typer(help="Make, list and revoke tokens.", no_args_is_help=True)


@app.command("create")
@at_desk
async def create_token(
    desk: CommandContext,
    name: Annotated[str, typer.Argument(help="What it is for; it shows in the list and in the audit.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", "-s", help="read, write, worker or admin; read, write and worker if left out."
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", metavar="NAME", help="Where it reaches; * is everywhere; default."),
    ] = None,
    expires: DurationOption = None,
) -> None:
    """Make a token and print its secret, which is shown this once."""
    scopes = scope or ["read", "write", "worker"]
    async with desk.target.open(create=True) as connection:
        made = await connection.create_token(name, scopes, namespace, expires)
    if desk.as_json:
        desk.output.document(made)
        return
    desk.output.say(made["secret"])
    typer.echo(
        f"Token {made['token_id']} ({', '.join(made['scopes'])}) was made. Keep the line above: it is not "
        "stored and cannot be shown again. Use it as PERDURE_TOKEN, --token or Authorization: Bearer.",
        err=True,
    )


@app.command("ls", hidden=True)
@app.command("list")
@at_desk
async def list_tokens(desk: CommandContext) -> None:
    """List all tokens, those that have ended too."""
    async with desk.target.open() as connection:
        tokens = await connection.list_tokens()
    if desk.as_json:
        desk.output.document({"items": tokens, "total": len(tokens)})
    elif not tokens:
        desk.output.say(EMPTY)
    else:
        columns = ("token_id", "name", "scopes", "namespaces", "made", "last used", "state")
        desk.output.show(make_table(columns, map(_row, tokens)))


def _row(token: dict[str, Any]) -> tuple[Any, ...]:
    return (
        token["token_id"],
        token["name"],
        ",".join(token["scopes"]),
        ",".join(token["namespaces"]),
        ago(token["create_time"]),
        ago(token.get("last_used_time")),
        _state(token),
    )


def _state(token: dict[str, Any]) -> str:
    import time

    from perdure.cli.shell.output import human_duration

    if token.get("revoke_time") is not None:
        return f"revoked {ago(token['revoke_time'])}"
    expires = token.get("expire_time")
    if expires is None:
        return "live"
    left = expires - time.time()
    return f"live for {human_duration(left)}" if left > 0 else f"expired {ago(expires)}"


@app.command("revoke")
@at_desk
async def revoke_token(
    desk: CommandContext, token_id: Annotated[str, typer.Argument(metavar="TOKEN_ID")]
) -> None:
    """End a token. It works nowhere any more, within a few seconds."""
    async with desk.target.open() as connection:
        ended = await connection.revoke_token(token_id)
    if desk.as_json:
        desk.output.document(ended)
    else:
        desk.output.say(f"Token {token_id} ({ended['name']}) is revoked.")
