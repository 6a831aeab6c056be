"""`perdure resources`: prompts, models and endpoints, and what has changed in them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.options import CommandContext, LimitOption, at_desk
from perdure.cli.shell.output import ago, make_table
from perdure.kernel.errors import NotFound

if TYPE_CHECKING:
    from perdure import ResourcesUpdate

EMPTY = """No resources yet. From Python:

  await store.add_resources({"prompt": PromptTemplate(template="Answer: {question}", engine="f-string")})"""
HIDDEN_FIELDS = ("api_key",)

app = typer.Typer(help="Look at resources.", no_args_is_help=True)
ResourcesArgument = Annotated[str, typer.Argument(metavar="RESOURCES_ID")]


@app.command("ls", hidden=True)
@app.command("list")
@at_desk
async def list_resources(desk: CommandContext, limit: LimitOption = 20) -> None:
    """List the resources, the newest first."""
    async with desk.target.open() as connection:
        page = await connection.store.query_resources(sort_by="update_time", sort_order="desc", limit=limit)
    if desk.as_json:
        desk.output.document({"items": [plain(each) for each in page], "total": page.total})
    elif not page:
        desk.output.say(EMPTY)
    else:
        rows = [
            (each.resources_id, each.version, ago(each.update_time), ", ".join(each.resources))
            for each in page
        ]
        desk.output.show(make_table(("resources_id", "version", "changed", "names"), rows))


@app.command("get", hidden=True)
@app.command("show")
@at_desk
async def show_resources(
    desk: CommandContext, resources_id: Annotated[str, typer.Argument(metavar="[RESOURCES_ID]")] = "latest"
) -> None:
    """Show resources by their id, or the latest."""
    async with desk.target.open() as connection:
        store = connection.store
        latest = resources_id == "latest"
        found = await (store.get_latest_resources() if latest else store.get_resources_by_id(resources_id))
    if found is None:
        raise NotFound("there are no resources yet" if latest else f"there are no resources {resources_id}")
    if desk.as_json:
        desk.output.document(plain(found))
        return
    desk.output.say(f"{found.resources_id}, version {found.version}, changed {ago(found.update_time)}\n")
    desk.output.say("\n".join(lines_of(found)))


@app.command("diff")
@at_desk
async def diff_resources(
    desk: CommandContext,
    resources_id: ResourcesArgument,
    old: Annotated[int | None, typer.Argument(min=1, metavar="[OLD]", help="The version before it.")] = None,
    new: Annotated[int | None, typer.Argument(min=1, metavar="[NEW]", help="The newest version.")] = None,
) -> None:
    """Show what changed between two versions of resources; between the last two if none are named."""
    async with desk.target.open() as connection:
        current = await connection.store.get_resources_by_id(resources_id)
        if current is None:
            raise NotFound(f"there are no resources {resources_id}")
        after = current if new in (None, current.version) else await connection.version(resources_id, new)
        number = after.version - 1 if old is None else old
        before = await connection.version(resources_id, number) if number else None
    diff = list(
        difflib.unified_diff(
            lines_of(before) if before else [],
            lines_of(after),
            f"{resources_id} version {before.version if before else 'none'}",
            f"{resources_id} version {after.version}",
            lineterm="",
        )
    )
    if desk.as_json:
        document = {"resources_id": resources_id, "old": before and before.version, "new": after.version}
        desk.output.document({**document, "diff": diff})
    else:
        _print_diff(desk, diff)


def _print_diff(desk: CommandContext, diff: list[str]) -> None:
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in diff or ["The two versions hold the same."]:
        desk.output.show(Text(line, style=styles.get(line[:1], "")))


def plain(found: ResourcesUpdate) -> dict[str, Any]:
    """Resources as they may be shown: without the keys that they hold."""
    document = found.model_dump(mode="json")
    for resource in document["resources"].values():
        for name in HIDDEN_FIELDS:
            if resource.get(name):
                resource[name] = "***"
    return document


def lines_of(found: ResourcesUpdate) -> list[str]:
    """Resources line by line: a template keeps its own lines, so that a diff shows what changed in it."""
    lines = []
    for name, resource in sorted(plain(found)["resources"].items()):
        lines.append(f"[{name}]")
        for key, value in resource.items():
            text = value if isinstance(value, str) else _compact(value)
            first, *rest = text.splitlines() or [""]
            lines += [f"{key}: {first}", *(f"    {line}" for line in rest)]
    return lines


def _compact(value: Any) -> str:
    from perdure.kernel.codec import encode_wire

    return encode_wire(value).decode()
