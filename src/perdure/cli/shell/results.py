"""How commands list, show and delete things: pages, tables, JSON, empty lists and confirmations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from perdure.cli.shell.arguments import confirm
from perdure.cli.shell.options import CommandContext
from perdure.cli.shell.target import CommandConnection
from perdure.kernel.pages import ListPart

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PAGE_SIZE = 1000
"""How many results one request may have."""


class ListedPage(Protocol[T_co]):
    """A page of a list."""

    @property
    def items(self) -> Sequence[T_co]: ...
    @property
    def next(self) -> str | None: ...


Fetch = Callable[[int, str | None], Awaitable[ListedPage[T] | ListPart[T]]]
"""Gives a page by its limit and cursor."""


class CommandResults(list[T]):
    """What a command lists: how many there are in all, where it is known, and whether there may be more."""

    def __init__(self, items: Iterable[T], total: int | None = None, *, more: bool = False) -> None:
        super().__init__(items)
        self.total, self.more = total, more


async def pages(fetch: Fetch[T], limit: int, keep: Callable[[T], bool] | None = None) -> CommandResults[T]:
    """Up to `limit` results, fetched in pages, up to the first that `keep` refuses."""
    found: list[T] = []
    cursor = None
    while True:
        page = await fetch(min(PAGE_SIZE, limit - len(found)), cursor)
        items = page if isinstance(page, ListPart) else page.items
        kept = [each for each in items if keep is None or keep(each)]
        found += kept
        cursor = page.next
        if cursor is None or len(kept) < len(items) or len(found) >= limit:
            return CommandResults(found, getattr(page, "total", None), more=cursor is not None)


def listing(
    context: CommandContext,
    found: Sequence[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[Any]],
    *,
    noun: str,
    empty: str,
    filtered: bool = False,
    document: Callable[[T], Any] | None = None,
    hint: bool = True,
) -> None:
    """Print a list as a table, or as JSON; an empty one explains how to begin, or that nothing matches.

    `noun` is in the plural. `document` makes the JSON of an item where it is not the item itself. Without
    `hint`, the total is not that of this list, and is not printed.
    """
    total, more = getattr(found, "total", None), getattr(found, "more", False)
    if context.as_json:
        items = list(found) if document is None else [document(each) for each in found]
        context.output.document({"items": items} if total is None else {"items": items, "total": total})
    elif not found:
        context.output.print(f"No {noun} match." if filtered else empty)
    else:
        context.output.table(columns, map(row, found))
        if hint:
            more_hint(context, len(found), total, noun, more=more)


def more_hint(
    context: CommandContext, shown: int, total: int | None, noun: str, *, more: bool = False
) -> None:
    """Print how many there are if not all are shown, or that there may be more."""
    if total is not None and total > shown:
        context.output.print(f"Showing {shown} of {total} {noun}. Use --limit to show more.")
    elif total is None and more:
        context.output.print(f"Showing {shown} {noun}. Use --limit to show more.")


def showing(
    context: CommandContext,
    document: Any,
    rows: Iterable[tuple[str, Any]],
    columns: Sequence[str] = (),
    details: Iterable[Sequence[Any]] = (),
) -> None:
    """Print one thing, a property a line, or its JSON; `details` is a table below it, if it has rows."""
    if context.as_json:
        context.output.document(document)
        return
    context.output.facts(rows)
    below = list(details)
    if below:
        context.output.print("")
        context.output.table(columns, below)


async def removing(
    context: CommandContext,
    noun: str,
    id: str,
    delete: Callable[[CommandConnection], Awaitable[object]],
    *,
    yes: bool,
    along: str = "",
) -> None:
    """Delete one thing after a confirmation; `along` names what is deleted with it."""
    if not yes:
        confirm(f"Delete {noun} {id}{f' with {along}' if along else ''}?")
    async with context.connect() as connection:
        await delete(connection)
    context.answer({f"{noun}_id": id, "deleted": True}, f"Deleted {noun} {id}.")
