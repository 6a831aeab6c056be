"""`perdure span`: the trace of a rollout."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.commands.rollouts import IdArgument, find
from perdure.cli.shell.options import CommandContext, LimitOption, at_desk

app = typer.Typer(help="Look at traces.", no_args_is_help=True)


@app.command("ls", hidden=True)
@app.command("list")
@at_desk
async def list_spans(
    desk: CommandContext,
    rollout_id: IdArgument,
    attempt: Annotated[
        str | None,
        typer.Option("--attempt", metavar="ID", help="Of this attempt only; latest is the newest."),
    ] = None,
    limit: LimitOption = 1000,
) -> None:
    """Draw a rollout's trace as a tree, with how long each step took."""
    from perdure.cli.shell.render import trace_tree

    async with desk.target.open() as connection:
        store = connection.store
        rollout = await find(store, rollout_id)
        attempts = list(await store.query_attempts(rollout_id))
        page = await store.query_spans(rollout_id, attempt, limit=limit)
    if desk.as_json:
        desk.output.document({"items": page.items, "total": page.total})
        return
    if attempt is not None:
        shown = {span.attempt_id for span in page} | {attempt}
        attempts = [each for each in attempts if each.attempt_id in shown]
    desk.output.console.print(trace_tree(rollout, attempts, page.items))
    if page.total > len(page):
        desk.output.say(f"{len(page)} of {page.total} spans; --limit shows more")
    elif not page.total:
        desk.output.say("No spans yet. A worker adds them, or an OTLP exporter that is sent to /v1/traces.")
