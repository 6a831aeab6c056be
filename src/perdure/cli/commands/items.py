"""`perdure item`: JSON values that agents store by namespace and key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.options import (
    CommandContext,
    CommandGroup,
    LimitOption,
    duration,
    number,
    parse_object,
    read_input,
    text,
)
from perdure.cli.shell.output import ago, human_duration, shorten
from perdure.cli.shell.results import listing, more_hint, pages, showing

if TYPE_CHECKING:
    from perdure.items.records import Item

EMPTY = """No items yet. Agents store them, and so can you:

  perdure item put users.ada theme '{"dark": true}'"""
COLUMNS = ("namespace", "key", "updated", "value")

app = CommandGroup("Store, list, show and delete items (the long-term memory of agents).")

PlaceArgument = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Namespace labels separated by dots: users.ada")
]
PrefixArgument = Annotated[
    str | None, typer.Argument(metavar="NAMESPACE", help="Only this namespace and those below it.")
]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY")]


def _labels(dotted: str | None) -> list[str]:
    return dotted.split(".") if dotted else []


def _dotted(item: Item) -> str:
    return ".".join(item.namespace)


@app.client_command("list")
async def list_items(
    context: CommandContext,
    place: PrefixArgument = None,
    filter: Annotated[
        str | None, text("JSON", """Filter by value, such as '{"n": {"$gt": 1}}'.""", "--filter")
    ] = None,
    query: Annotated[
        str | None,
        text("TEXT", "Sort by similarity to this text, if the server has embeddings.", "--query"),
    ] = None,
    limit: LimitOption = 20,
) -> None:
    """List items, last updated first."""
    wanted = parse_object(filter, "--filter")
    async with context.connect() as connection:
        items = await pages(
            lambda limit, cursor: connection.items.search(
                _labels(place), filter=wanted, query=query, limit=limit, refresh_ttl=False, cursor=cursor
            ),
            limit,
        )
    filtered = bool(place or wanted or query)
    listing(context, items, COLUMNS, _row, noun="items", empty=EMPTY, filtered=filtered)


def _row(item: Item) -> tuple[Any, ...]:
    return _dotted(item), item.key, ago(item.updated_at), shorten(item.value)


@app.client_command("show")
async def show_item(context: CommandContext, place: PlaceArgument, key: KeyArgument) -> None:
    """Show an item."""
    from perdure.kernel.errors import NotFound

    async with context.connect() as connection:
        item = await connection.items.get(_labels(place), key, refresh_ttl=False)
    if item is None:
        raise NotFound(f"Item {key} not found in the namespace {place}")
    rows = (
        ("namespace", _dotted(item)),
        ("key", item.key),
        ("created", ago(item.created_at)),
        ("updated", ago(item.updated_at)),
        ("ttl", None if item.expires_at is None else human_duration(item.expires_at - item.updated_at)),
        ("value", item.value),
    )
    showing(context, item, rows)


@app.client_command("put")
async def put_item(
    context: CommandContext,
    place: PlaceArgument,
    key: KeyArgument,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="JSON object, or @FILE to read it from a file.")
    ],
    ttl: Annotated[float | None, duration("Delete the item after this time")] = None,
) -> None:
    """Store an item, replacing an existing one."""
    from msgspec import UNSET

    minutes = UNSET if ttl is None else ttl / 60
    async with context.connect(create=True) as connection:
        await connection.items.put(_labels(place), key, read_input(value, "VALUE"), ttl_minutes=minutes)
    context.answer({"namespace": _labels(place), "key": key, "kept": True}, f"Stored {key} in {place}.")


@app.client_command("delete")
async def delete_item(context: CommandContext, place: PlaceArgument, key: KeyArgument) -> None:
    """Delete an item; one that does not exist is no error."""
    async with context.connect() as connection:
        await connection.items.delete(_labels(place), key)
    context.answer({"namespace": _labels(place), "key": key, "deleted": True}, f"Deleted {key} from {place}.")


@app.client_command("namespaces")
async def list_namespaces(
    context: CommandContext,
    prefix: PrefixArgument = None,
    suffix: Annotated[
        str | None, text("LABELS", "Only namespaces that end with these labels.", "--suffix")
    ] = None,
    max_depth: Annotated[int | None, number("Shorten to this many labels.", "--max-depth", min=1)] = None,
    limit: LimitOption = 100,
) -> None:
    """List the namespaces of items; in a filter, the label * matches any."""
    async with context.connect() as connection:
        namespaces = await pages(
            lambda limit, cursor: connection.items.list_namespaces(
                prefix=_labels(prefix),
                suffix=_labels(suffix),
                max_depth=max_depth,
                limit=limit,
                cursor=cursor,
            ),
            limit,
        )
    empty = "No namespaces match." if prefix or suffix else EMPTY
    context.answer({"namespaces": namespaces}, "\n".join(map(".".join, namespaces)) or empty)
    if not context.as_json:
        more_hint(context, len(namespaces), None, "namespaces", more=namespaces.more)
