"""`perdure view`: list, save and delete saved views of the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.options import CommandContext, CommandGroup, YesOption, flag
from perdure.cli.shell.output import ago
from perdure.cli.shell.results import listing, removing

if TYPE_CHECKING:
    from perdure.access.views import SavedView

EMPTY = """No saved views. Try:

  perdure view save rollouts "failed today" '?status=failed'"""
COLUMNS = ("screen", "name", "query", "for", "saved")

ScreenArgument = Annotated[str, typer.Argument(metavar="SCREEN", help="Screen, such as rollouts or runs.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the view.")]
OwnOption = Annotated[bool, flag("--own", help="For the caller's token alone.")]

app = CommandGroup("List, save and delete saved views of the dashboard.")


@app.client_command("list")
async def list_views(context: CommandContext) -> None:
    """List the saved views of the namespace, and the caller's own."""
    async with context.connect() as connection:
        views = await connection.access.list_views()
    listing(context, views, COLUMNS, _row, noun="views", empty=EMPTY)


def _row(view: SavedView) -> tuple[Any, ...]:
    return view.screen, view.name, view.query, "everybody" if view.shared else "you", ago(view.saved_at)


@app.client_command("save")
async def save_view(
    context: CommandContext,
    screen: ScreenArgument,
    name: NameArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Filters, as in the URL of the screen.")] = "",
    own: OwnOption = False,
) -> None:
    """Save a view of a screen, in place of one of the same name."""
    async with context.connect() as connection:
        saved = await connection.access.save_view(name, screen, query, shared=not own)
    context.answer(saved, f"Saved view {name!r} of {screen}.")


@app.client_command("delete")
async def delete_view(
    context: CommandContext,
    screen: ScreenArgument,
    name: NameArgument,
    own: OwnOption = False,
    yes: YesOption = False,
) -> None:
    """Delete a saved view."""
    await removing(
        context,
        "view",
        name,
        lambda connection: connection.access.delete_view(name=name, screen=screen, shared=not own),
        yes=yes,
    )
