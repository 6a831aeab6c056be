"""`perdure assistant`: agents with a configuration, and their versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import complete_agent, id_argument
from perdure.cli.shell.options import (
    CommandContext,
    CommandGroup,
    ConfigOption,
    ContextOption,
    LimitOption,
    MetadataFilter,
    MetadataOption,
    YesOption,
    name_argument,
    number,
    parse_metadata,
    parse_object,
    text,
)
from perdure.cli.shell.output import ago, shorten
from perdure.cli.shell.results import listing, pages, removing, showing

if TYPE_CHECKING:
    from perdure.assistants.records import Assistant

EMPTY = """No assistants yet. Each agent of a worker gets one automatically. Start a worker:

  perdure worker --agents ./agents.py:agents

Then create more, each with its own configuration:

  perdure assistant create greet --name 'In French' \\
    --config '{"configurable": {"language": "fr"}}'"""
COLUMNS = ("assistant_id", "agent", "name", "version", "updated", "config")
VERSION_COLUMNS = ("version", "name", "created", "config")

app = CommandGroup("Create, show, update and delete assistants.")

IdArgument = Annotated[
    str, id_argument("ASSISTANT_ID", "assistant", help="ID, its first characters, `last`, or an agent.")
]
NameOption = Annotated[str | None, text("TEXT", "Display name.", "--name")]
DescriptionOption = Annotated[str | None, text("TEXT", "Description.", "--description")]


@app.client_command("list")
async def list_assistants(
    context: CommandContext,
    agent: Annotated[str | None, text("NAME", "Filter by agent.", "--agent", complete=complete_agent)] = None,
    metadata: MetadataFilter = None,
    limit: LimitOption = 20,
) -> None:
    """List assistants."""
    wanted = parse_metadata(metadata)
    async with context.connect() as connection:
        assistants = await pages(
            lambda limit, cursor: connection.assistants.search(
                agent=agent, metadata=wanted, limit=limit, cursor=cursor
            ),
            limit,
        )
    filtered = agent is not None or wanted is not None
    listing(context, assistants, COLUMNS, _row, noun="assistants", empty=EMPTY, filtered=filtered)


def _row(assistant: Assistant) -> tuple[Any, ...]:
    return (
        assistant.assistant_id,
        assistant.agent,
        assistant.name,
        assistant.version,
        ago(assistant.updated_at),
        shorten(assistant.config),
    )


def _show(context: CommandContext, assistant: Assistant) -> None:
    rows = (
        ("assistant", assistant.assistant_id),
        ("agent", assistant.agent),
        ("name", assistant.name),
        ("description", assistant.description),
        ("version", str(assistant.version)),
        ("created by", "its agent" if assistant.system else None),
        ("updated", ago(assistant.updated_at)),
        ("config", assistant.config or None),
        ("context", assistant.context or None),
        ("metadata", assistant.metadata or None),
    )
    showing(context, assistant, rows)


@app.client_command("show")
async def show_assistant(context: CommandContext, assistant_id: IdArgument) -> None:
    """Show an assistant."""
    async with context.connect() as connection:
        _show(context, await connection.assistants.get(assistant_id))


@app.client_command("graph")
async def show_graph(context: CommandContext, assistant_id: IdArgument) -> None:
    """Show the nodes and edges of an assistant's graph, by its server or a worker that has it."""
    async with context.connect() as connection:
        graph = await connection.graphs.drawing(assistant_id)
    names = ", ".join(str(node.get("id")) for node in graph.nodes)
    edges = [(edge.get("source"), edge.get("target"), edge.get("conditional")) for edge in graph.edges]
    showing(context, graph, (("nodes", names),), ("from", "to", "conditional"), edges)


@app.client_command("schemas")
async def show_schemas(context: CommandContext, assistant_id: IdArgument) -> None:
    """Print the JSON Schemas of what an assistant takes and gives, and of its configuration."""
    async with context.connect() as connection:
        context.output.document(await connection.graphs.schemas(assistant_id))


@app.client_command("create")
async def create_assistant(
    context: CommandContext,
    agent: Annotated[str, name_argument("AGENT", "Agent that the assistant runs.", complete_agent)],
    assistant_id: Annotated[
        str | None, text("ASSISTANT_ID", "ID of the assistant (generated if omitted).", "--id")
    ] = None,
    name: NameOption = None,
    description: DescriptionOption = None,
    config: ConfigOption = None,
    agent_context: ContextOption = None,
    metadata: MetadataOption = None,
) -> None:
    """Create an assistant for an agent that a worker has registered, and print its ID."""
    async with context.connect() as connection:
        created = await connection.assistants.create(
            agent,
            assistant_id=assistant_id,
            name=name,
            description=description,
            config=parse_object(config, "--config"),
            context=parse_object(agent_context, "--context"),
            metadata=parse_object(metadata, "--metadata"),
        )
    context.answer(created, created.assistant_id)


@app.client_command("update")
async def update_assistant(
    context: CommandContext,
    assistant_id: IdArgument,
    agent: Annotated[str | None, text("NAME", "New agent.", "--agent", complete=complete_agent)] = None,
    name: NameOption = None,
    description: DescriptionOption = None,
    config: ConfigOption = None,
    agent_context: ContextOption = None,
    metadata: MetadataOption = None,
    version: Annotated[
        int | None, number("Switch to this version instead of creating one.", "--version", min=1)
    ] = None,
) -> None:
    """Create a new version of an assistant, or switch to an existing one."""
    changes: dict[str, Any] = {
        "agent": agent,
        "name": name,
        "description": description,
        "config": parse_object(config, "--config"),
        "context": parse_object(agent_context, "--context"),
        "metadata": parse_object(metadata, "--metadata"),
    }
    given = any(value is not None for value in changes.values())
    if given == (version is not None):
        raise typer.BadParameter("give at least one change, or --version alone")
    async with context.connect() as connection:
        assistants = connection.assistants
        if version is not None:
            _show(context, await assistants.set_latest(assistant_id, version))
        else:
            _show(context, await assistants.update(assistant_id, **changes))


@app.client_command("versions")
async def list_versions(context: CommandContext, assistant_id: IdArgument, limit: LimitOption = 20) -> None:
    """List the versions of an assistant, newest first."""
    async with context.connect() as connection:
        versions = await pages(
            lambda limit, cursor: connection.assistants.versions(assistant_id, limit=limit, cursor=cursor),
            limit,
        )
    listing(context, versions, VERSION_COLUMNS, _version_row, noun="versions", empty="No versions.")


def _version_row(assistant: Assistant) -> tuple[Any, ...]:
    return assistant.version, assistant.name, ago(assistant.updated_at), shorten(assistant.config)


@app.client_command("delete")
async def delete_assistant(context: CommandContext, assistant_id: IdArgument, yes: YesOption = False) -> None:
    """Delete an assistant with its versions; its runs are kept."""
    await removing(
        context,
        "assistant",
        assistant_id,
        lambda connection: connection.assistants.delete(assistant_id),
        yes=yes,
        along="its versions",
    )
