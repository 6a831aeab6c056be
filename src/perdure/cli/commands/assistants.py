"""`perdure assistant`: agents with a configuration of their own; and `perdure agents`: what there is here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.commands.runs import tell_deleted
from perdure.cli.commands.threads import TermsOption
from perdure.cli.hosting.worker import EMPTY as NO_AGENTS
from perdure.cli.hosting.worker import AgentsOption
from perdure.cli.shell.arguments import confirm, metadata_of, object_of
from perdure.cli.shell.options import (
    CommandContext,
    JsonOption,
    LimitOption,
    NoColorOption,
    YesOption,
    at_desk,
)
from perdure.cli.shell.output import Output, ago, facts_table, make_table, shorten, warn

if TYPE_CHECKING:
    from perdure.assistants.records import Assistant

EMPTY = """No assistants yet. Every agent of a worker gets one by itself; start a worker:

  perdure worker --agents ./agents.py:agents

and make more of them, each with a configuration of its own:

  perdure assistant create greet --name 'In French' --config '{"configurable": {"language": "fr"}}'"""

app = typer.Typer(help="Look at assistants, make and change them.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ASSISTANT_ID")]
NameOption = Annotated[str | None, typer.Option(help="What people call it.")]
DescriptionOption = Annotated[str | None, typer.Option(help="What it is for.")]
ObjectOption = Annotated[str | None, typer.Option(help="A JSON object.")]


def _show(desk: CommandContext, assistant: Assistant) -> None:
    if desk.as_json:
        desk.output.document(assistant)
        return
    rows = (
        ("assistant", assistant.assistant_id),
        ("agent", assistant.agent),
        ("name", assistant.name),
        ("description", assistant.description),
        ("version", str(assistant.version)),
        ("made by", "its agent" if assistant.system else None),
        ("changed", ago(assistant.updated_at)),
        ("config", assistant.config or None),
        ("context", assistant.context or None),
        ("metadata", assistant.metadata or None),
    )
    desk.output.show(facts_table(rows))


@app.command("list", hidden=True)
@app.command("ls")
@at_desk
async def list_assistants(
    desk: CommandContext,
    agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
    metadata: TermsOption = None,
    limit: LimitOption = 20,
) -> None:
    """List the assistants."""
    wanted = metadata_of(metadata)
    async with desk.target.open() as connection:
        page = await connection.assistants.search(agent=agent, metadata=wanted, limit=min(limit, 1000))
    if desk.as_json:
        desk.output.document({"items": page.items, "total": page.total})
    elif not page:
        desk.output.say(EMPTY if agent is None and wanted is None else "No assistant is like that.")
    else:
        rows = [
            (
                each.assistant_id,
                each.agent,
                each.name,
                each.version,
                ago(each.updated_at),
                shorten(each.config),
            )
            for each in page
        ]
        columns = ("assistant_id", "agent", "name", "version", "changed", "config")
        desk.output.show(make_table(columns, rows))


@app.command("show", hidden=True)
@app.command("get")
@at_desk
async def get_assistant(desk: CommandContext, assistant_id: IdArgument) -> None:
    """Show an assistant."""
    async with desk.target.open() as connection:
        _show(desk, await connection.assistants.get(assistant_id))


@app.command("create")
@at_desk
async def create_assistant(
    desk: CommandContext,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent that it is of.")],
    assistant_id: Annotated[str | None, typer.Option("--id", help="Made up if left out.")] = None,
    name: NameOption = None,
    description: DescriptionOption = None,
    config: ObjectOption = None,
    context: ObjectOption = None,
    metadata: ObjectOption = None,
) -> None:
    """Make an assistant of an agent that a worker has brought along."""
    async with desk.target.open() as connection:
        made = await connection.assistants.create(
            agent,
            assistant_id=assistant_id,
            name=name,
            description=description,
            config=object_of(config, "--config"),
            context=object_of(context, "--context"),
            metadata=object_of(metadata, "--metadata"),
        )
    if desk.as_json:
        desk.output.document(made)
    else:
        desk.output.say(made.assistant_id)


@app.command("update")
@at_desk
async def update_assistant(
    desk: CommandContext,
    assistant_id: IdArgument,
    agent: Annotated[str | None, typer.Option(help="Another agent.")] = None,
    name: NameOption = None,
    description: DescriptionOption = None,
    config: ObjectOption = None,
    context: ObjectOption = None,
    metadata: ObjectOption = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="Go back, or forth, to this version instead.")
    ] = None,
) -> None:
    """Make the next version of an assistant, or let an older one count again."""
    changes = {
        "agent": agent,
        "name": name,
        "description": description,
        "config": object_of(config, "--config"),
        "context": object_of(context, "--context"),
        "metadata": object_of(metadata, "--metadata"),
    }
    given = any(value is not None for value in changes.values())
    if given == (version is not None):
        raise typer.BadParameter("say what is to change, or give --version")
    async with desk.target.open() as connection:
        assistants = connection.assistants
        if version is not None:
            _show(desk, await assistants.set_latest(assistant_id, version))
        else:
            _show(desk, await assistants.update(assistant_id, **changes))  # type: ignore[arg-type]


@app.command("versions")
@at_desk
async def list_versions(desk: CommandContext, assistant_id: IdArgument, limit: LimitOption = 20) -> None:
    """List what an assistant was in its versions, the newest first."""
    async with desk.target.open() as connection:
        found = await connection.assistants.versions(assistant_id, limit=min(limit, 1000))
    if desk.as_json:
        desk.output.document({"items": found})
        return
    rows = [(each.version, each.name, ago(each.updated_at), shorten(each.config)) for each in found]
    desk.output.show(make_table(("version", "name", "made", "config"), rows))


@app.command("delete")
@at_desk
async def delete_assistant(desk: CommandContext, assistant_id: IdArgument, yes: YesOption = False) -> None:
    """Remove an assistant with its versions; its runs stay."""
    if not yes:
        confirm(f"This removes assistant {assistant_id}. Go on?")
    async with desk.target.open() as connection:
        await connection.assistants.delete(assistant_id)
    tell_deleted(desk, "assistant_id", assistant_id)


def agents(given: AgentsOption = None, as_json: JsonOption = False, no_color: NoColorOption = False) -> None:
    """Say which agents are configured here: those of perdure.toml, langgraph.json and --agents."""
    from perdure.agents.loading import load_agents
    from perdure.cli.hosting.worker import include
    from perdure.kernel.config import load_settings
    from perdure.worker.registry import Agents

    # What fails is part of the answer, and need not stand in a log as well.
    logging.getLogger("perdure.agents.loading").disabled = True
    loaded = load_agents(Agents(), load_settings())
    include(loaded.agents, given or ())
    output = Output(as_json=as_json, no_color=no_color)
    if as_json:
        failures = [each._asdict() for each in loaded.failures]
        output.document({"agents": loaded.agents.specs, "failures": failures})
    elif len(loaded.agents):
        rows = [(each.name, each.kind, each.description) for each in loaded.agents.specs]
        output.show(make_table(("agent", "kind", "description"), rows))
    elif not loaded.failures:
        output.say(NO_AGENTS[0].upper() + NO_AGENTS[1:].rstrip())
    if loaded.failures:
        for failure in loaded.failures if not as_json else ():
            warn(str(failure))
        raise typer.Exit(1)
