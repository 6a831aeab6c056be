"""Lists, single objects and deletions in commands: pages, tables, JSON, empty lists and confirmations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from perdure.cli.shell.options import CommandContext, confirm
from perdure.cli.shell.target import CommandConnection
from perdure.kernel.pages import PaginatedResult, Part

T = TypeVar("T")

PAGE_SIZE = 1000
"""Maximum results of one request."""


Fetch = Callable[[int, str | None], Awaitable[Part[T] | PaginatedResult[T]]]
"""Fetches a page by its limit and cursor."""


class CommandResults(list[T]):
    """Results of a list command: the total, if known, and whether there may be more."""

    def __init__(self, items: Iterable[T], total: int | None = None, *, more: bool = False) -> None:
        super().__init__(items)
        self.total, self.more = total, more


async def pages(fetch: Fetch[T], limit: int, keep: Callable[[T], bool] | None = None) -> CommandResults[T]:
    """Fetch up to `limit` results in pages, until `keep` refuses one."""
    results: list[T] = []
    cursor = None
    while True:
        page = await fetch(min(PAGE_SIZE, limit - len(results)), cursor)
        kept = [item for item in page.items if keep is None or keep(item)]
        results += kept
        cursor = page.next
        if cursor is None or len(kept) < len(page.items) or len(results) >= limit:
            return CommandResults(results, getattr(page, "total", None), more=cursor is not None)


def listing(
    context: CommandContext,
    results: Sequence[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[Any]],
    *,
    noun: str,
    empty: str,
    filtered: bool = False,
    document: Callable[[T], Any] | None = None,
    hint: bool = True,
) -> None:
    """Print a list as a table or as JSON. An empty list explains how to start, or that nothing matches.

    `noun` is plural. `document` builds the JSON of an item, by default the item itself. Set `hint` to False
    if the total is not that of this list.
    """
    total, more = getattr(results, "total", None), getattr(results, "more", False)
    if context.as_json:
        items = list(results) if document is None else [document(item) for item in results]
        context.output.document({"items": items} if total is None else {"items": items, "total": total})
    elif not results:
        context.output.print(f"No {noun} match." if filtered else empty)
    else:
        context.output.table(columns, map(row, results))
        if hint:
            more_hint(context, len(results), total, noun, more=more)


def more_hint(
    context: CommandContext, shown: int, total: int | None, noun: str, *, more: bool = False
) -> None:
    """Print the total if not all results are shown, or that there may be more."""
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
    """Print one thing, a property a line, or its JSON. `details` are rows of a table below it."""
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
    """Delete one thing after a confirmation; `along` names other things that are deleted with it."""
    if not yes:
        confirm(f"Delete {noun} {id}{f' with {along}' if along else ''}?")
    async with context.connect() as connection:
        await delete(connection)
    context.answer({f"{noun}_id": id, "deleted": True}, f"Deleted {noun} {id}.")
