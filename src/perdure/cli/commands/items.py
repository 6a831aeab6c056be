"""`perdure item`: what agents remember beyond a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.shell.arguments import input_of, object_of
from perdure.cli.shell.options import CommandContext, DurationOption, LimitOption, at_desk
from perdure.cli.shell.output import ago, facts_table, make_table, shorten

if TYPE_CHECKING:
    from perdure.items.records import Item

EMPTY = """No items yet. Agents keep them; you can as well:

  perdure item put users.ada theme '{"dark": true}'"""

app = typer.Typer(help="Look at what agents remember, and change it.", no_args_is_help=True)

PlaceArgument = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Its labels, with periods between them.")
]
PrefixArgument = Annotated[
    str | None, typer.Argument(metavar="[NAMESPACE]", help="Only at or below this one.", show_default=False)
]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY")]


def _labels(dotted: str | None) -> list[str]:
    return dotted.split(".") if dotted else []


def _dotted(item: Item) -> str:
    return ".".join(item.namespace)


@app.command("list", hidden=True)
@app.command("ls")
@at_desk
async def list_items(
    desk: CommandContext,
    place: PrefixArgument = None,
    filter: Annotated[
        str | None, typer.Option(help="""A JSON object, such as '{"n": {"$gt": 1}}'.""")
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="The nearest in meaning first, where the server is set up for that.")
    ] = None,
    limit: LimitOption = 20,
) -> None:
    """List items, those changed last first."""
    wanted = object_of(filter, "--filter")
    async with desk.target.open() as connection:
        found = await connection.items.search(
            _labels(place), filter=wanted, query=query, limit=limit, refresh_ttl=False
        )
    if desk.as_json:
        desk.output.document({"items": found})
    elif not found:
        desk.output.say("No item is like that." if place or wanted or query else EMPTY)
    else:
        rows = [(_dotted(item), item.key, ago(item.updated_at), shorten(item.value)) for item in found]
        desk.output.show(make_table(("namespace", "key", "changed", "value"), rows))


@app.command("show", hidden=True)
@app.command("get")
@at_desk
async def get_item(desk: CommandContext, place: PlaceArgument, key: KeyArgument) -> None:
    """Show an item."""
    from perdure.kernel.clock import human_duration
    from perdure.kernel.errors import NotFound

    async with desk.target.open() as connection:
        item = await connection.items.get(_labels(place), key, refresh_ttl=False)
    if item is None:
        raise NotFound(f"Item {key} not found in the namespace {place}")
    if desk.as_json:
        desk.output.document(item)
        return
    lasts = None if item.expires_at is None else human_duration(item.expires_at - item.updated_at)
    rows = (
        ("namespace", _dotted(item)),
        ("key", item.key),
        ("made", ago(item.created_at)),
        ("changed", ago(item.updated_at)),
        ("lasts", lasts),
        ("value", item.value),
    )
    desk.output.show(facts_table(rows))


@app.command("put")
@at_desk
async def put_item(
    desk: CommandContext,
    place: PlaceArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="A JSON object, or @FILE with one.")],
    ttl: DurationOption = None,
) -> None:
    """Keep an item, in the place of what was there; with --ttl it goes by itself."""
    from msgspec import UNSET

    minutes = UNSET if ttl is None else ttl / 60
    async with desk.target.open(create=True) as connection:
        await connection.items.put(_labels(place), key, input_of(value), ttl_minutes=minutes)
    if desk.as_json:
        desk.output.document({"namespace": _labels(place), "key": key, "kept": True})
    else:
        desk.output.say(f"{key} is kept in {place}")


@app.command("delete", hidden=True)
@app.command("rm")
@at_desk
async def delete_item(desk: CommandContext, place: PlaceArgument, key: KeyArgument) -> None:
    """Remove an item, if it is there."""
    async with desk.target.open() as connection:
        await connection.items.delete(_labels(place), key)
    if desk.as_json:
        desk.output.document({"namespace": _labels(place), "key": key, "deleted": True})
    else:
        desk.output.say(f"{key} is not in {place} any more")


@app.command("namespaces")
@at_desk
async def list_namespaces(
    desk: CommandContext,
    prefix: PrefixArgument = None,
    suffix: Annotated[str | None, typer.Option(help="Only those that end like this.")] = None,
    max_depth: Annotated[int | None, typer.Option(min=1, help="Cut to so many labels.")] = None,
    limit: LimitOption = 100,
) -> None:
    """List the namespaces that hold items; the label * stands for any."""
    async with desk.target.open() as connection:
        found = await connection.items.list_namespaces(
            prefix=_labels(prefix), suffix=_labels(suffix), max_depth=max_depth, limit=limit
        )
    if desk.as_json:
        desk.output.document({"namespaces": found})
    elif not found:
        desk.output.say("No namespace is like that." if prefix or suffix else EMPTY)
    else:
        for labels in found:
            desk.output.say(".".join(labels))
