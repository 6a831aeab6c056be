"""`perdure resources`: prompts, models and endpoints, and the changes between their versions."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import id_argument
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption
from perdure.cli.shell.output import ago
from perdure.cli.shell.results import listing
from perdure.kernel.errors import NotFound

if TYPE_CHECKING:
    from perdure import ResourcesUpdate

EMPTY = """No resources yet. Add some from Python:

  prompt = PromptTemplate(template="Answer: {question}", engine="f-string")
  await store.add_resources({"prompt": prompt})"""
COLUMNS = ("resources_id", "version", "updated", "names")
HIDDEN_FIELDS = ("api_key",)

app = CommandGroup("List, show and compare resources (prompts, models, endpoints).")
ResourcesArgument = Annotated[str, id_argument("RESOURCES_ID", "resources")]


@app.client_command("list")
async def list_resources(context: CommandContext, limit: LimitOption = 20) -> None:
    """List resources, last updated first."""
    async with context.connect() as connection:
        page = await connection.store.query_resources(sort_by="update_time", sort_order="desc", limit=limit)
    listing(context, page, COLUMNS, _row, noun="resources", empty=EMPTY, document=plain)


def _row(update: ResourcesUpdate) -> tuple[Any, ...]:
    return update.resources_id, update.version, ago(update.update_time), ", ".join(update.resources)


@app.client_command("show")
async def show_resources(context: CommandContext, resources_id: ResourcesArgument = "latest") -> None:
    """Show resources by ID, or the latest."""
    async with context.connect() as connection:
        store = connection.store
        latest = resources_id == "latest"
        resources = await (
            store.get_latest_resources() if latest else store.get_resources_by_id(resources_id)
        )
    if resources is None:
        raise NotFound("no resources yet" if latest else f"resources {resources_id} not found")
    head = f"{resources.resources_id}, version {resources.version}, updated {ago(resources.update_time)}"
    context.answer(plain(resources), "\n".join((head, "", *format_resources(resources))))


@app.client_command("diff")
async def diff_resources(
    context: CommandContext,
    resources_id: ResourcesArgument,
    old: Annotated[
        int | None,
        typer.Argument(min=1, metavar="OLD", help="Old version (default: the one before NEW)."),
    ] = None,
    new: Annotated[
        int | None, typer.Argument(min=1, metavar="NEW", help="New version (default: the newest).")
    ] = None,
) -> None:
    """Show the changes between two versions of resources; by default the last two."""
    async with context.connect() as connection:
        current = await connection.store.get_resources_by_id(resources_id)
        if current is None:
            raise NotFound(f"resources {resources_id} not found")
        version = connection.resources.get_version
        after = current if new in (None, current.version) else await version(resources_id, new)
        number = after.version - 1 if old is None else old
        before = await version(resources_id, number) if number else None
    diff = list(
        difflib.unified_diff(
            format_resources(before) if before else [],
            format_resources(after),
            f"{resources_id} version {before.version if before else 'none'}",
            f"{resources_id} version {after.version}",
            lineterm="",
        )
    )
    if context.as_json:
        document = {"resources_id": resources_id, "old": before and before.version, "new": after.version}
        context.output.document({**document, "diff": diff})
    else:
        _print_diff(context, diff)


def _print_diff(context: CommandContext, diff: list[str]) -> None:
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in diff or ["The versions are identical."]:
        context.output.show(Text(line, style=styles.get(line[:1], "")))


def plain(resources: ResourcesUpdate) -> dict[str, Any]:
    """Return resources with masked API keys."""
    document = resources.model_dump(mode="json")
    for resource in document["resources"].values():
        for name in HIDDEN_FIELDS:
            if resource.get(name):
                resource[name] = "***"
    return document


def format_resources(resources: ResourcesUpdate) -> list[str]:
    """Format resources line by line. A template keeps its lines, so that a diff shows changed lines."""
    lines = []
    for name, resource in sorted(plain(resources)["resources"].items()):
        lines.append(f"[{name}]")
        for key, value in resource.items():
            text = value if isinstance(value, str) else _compact(value)
            first, *rest = text.splitlines() or [""]
            lines += [f"{key}: {first}", *(f"    {line}" for line in rest)]
    return lines


def _compact(value: Any) -> str:
    from perdure.kernel.codec import encode_wire

    return encode_wire(value).decode()
