"""`perdure override`: switch workflows and crons on or off, whatever their files say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import complete_schedule, complete_workflow
from perdure.cli.shell.options import CommandContext, CommandGroup, flag, name_argument, parse_choice, text
from perdure.cli.shell.output import ago, parse_moment
from perdure.cli.shell.results import listing

if TYPE_CHECKING:
    from perdure.cli.shell.target import CommandConnection
    from perdure.schedules.records import CronOverride
    from perdure.workflows.override_model import WorkflowOverride

PAGE = 1000
KINDS = ("workflow", "cron")
EMPTY = """No overrides. Workflows and crons are as their files say. To switch a workflow off:

  perdure override set workflow NAME --off"""
COLUMNS = ("kind", "name", "enabled", "schedule", "updated", "by")

app = CommandGroup("Switch workflows and crons on or off, whatever their files say.")


def _complete_name(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    complete = complete_workflow if ctx.params.get("kind") == "workflow" else complete_schedule
    return complete(ctx, incomplete)


KindArgument = Annotated[str, typer.Argument(metavar="KIND", help="workflow or cron.", show_default=False)]
NameArgument = Annotated[str, name_argument("NAME", "Name of the workflow or cron.", _complete_name)]


@app.client_command("list")
async def list_overrides(context: CommandContext) -> None:
    """List the overrides of workflows and crons."""
    async with context.connect() as connection:
        overrides = [*await _workflows(connection), *await _crons(connection)]
    listing(context, overrides, COLUMNS, _row, noun="overrides", empty=EMPTY)


async def _workflows(connection: CommandConnection) -> list[dict[str, Any]]:
    overrides: list[WorkflowOverride] = []
    while len(page := await connection.workflow_overrides.list(limit=PAGE, after=_last(overrides))) == PAGE:
        overrides += page
    return [
        {"kind": "workflow", "schedule": None, **override.model_dump()} for override in (*overrides, *page)
    ]


async def _crons(connection: CommandConnection) -> list[dict[str, Any]]:
    overrides: list[CronOverride] = []
    while len(page := await connection.schedules.overrides(limit=PAGE, after=_last(overrides))) == PAGE:
        overrides += page
    return [{"kind": "cron", **override.model_dump()} for override in (*overrides, *page)]


def _last(overrides: list[Any]) -> str:
    return overrides[-1].name if overrides else ""


def _row(override: dict[str, Any]) -> tuple[Any, ...]:
    return (
        override["kind"],
        override["name"],
        "on" if override["enabled"] else "off",
        override["schedule"],
        ago(parse_moment(override["updated_at"])),
        override["updated_by"],
    )


@app.client_command("set")
async def set_override(
    context: CommandContext,
    kind: KindArgument,
    name: NameArgument,
    on: Annotated[bool, flag("--on", help="Switch it on.")] = False,
    off: Annotated[bool, flag("--off", help="Switch it off: nothing new is started.")] = False,
    schedule: Annotated[
        str | None, text("EXPRESSION", "Other times for a cron; 'file' is those of its file.", "--schedule")
    ] = None,
) -> None:
    """Switch a workflow or a cron on or off, or give a cron other times."""
    from msgspec import UNSET

    chosen = parse_choice(kind, KINDS, "KIND")
    if on and off:
        raise typer.BadParameter("give --on or --off, not both")
    if chosen == "workflow" and schedule is not None:
        raise typer.BadParameter("--schedule is for crons; a workflow has no times")
    if not on and not off and schedule is None:
        raise typer.BadParameter("give --on or --off" + ("" if chosen == "workflow" else ", or --schedule"))
    async with context.connect() as connection:
        if chosen == "workflow":
            document: Any = await connection.workflow_overrides.set_enabled(name, enabled=on)
        else:
            document = await connection.schedules.set_override(
                name,
                enabled=on if on or off else UNSET,
                schedule=UNSET if schedule is None else None if schedule == "file" else schedule,
            )
    state = "on" if document.enabled else "off"
    context.answer(document, f"{chosen.capitalize()} {name} is {state}.")


@app.client_command("clear")
async def clear_override(context: CommandContext, kind: KindArgument, name: NameArgument) -> None:
    """Delete an override: what the file says counts again."""
    chosen = parse_choice(kind, KINDS, "KIND")
    async with context.connect() as connection:
        if chosen == "workflow":
            await connection.workflow_overrides.clear(name)
        else:
            await connection.schedules.clear_override(name)
    context.answer(
        {"kind": chosen, "name": name, "cleared": True}, f"{chosen.capitalize()} {name} is as its file says."
    )
