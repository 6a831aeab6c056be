"""IDs on the command line: whole ones, their first characters, and `last`; and what shells offer for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from perdure.cli.shell.target import Connection, Target
from perdure.kernel.errors import InvalidInput, NotFound, NotSupported, PerdureError

if TYPE_CHECKING:
    from perdure.diagnostics.finding import FoundId, Kind

LAST = "last"
SHOWN = 8
"""How many candidates an ambiguous beginning names."""
OFFERED = 50
"""How many ids a shell offers."""
COMPLETION_SECONDS = 1.0
"""How long a shell waits for a server."""
ROLLOUTS: tuple[Kind, ...] = ("rollout", "run", "phase", "job")
"""What is a rollout."""
EXPLAINED: tuple[Kind, ...] = (
    *ROLLOUTS,
    *("thread", "attempt", "workflow_run", "approval", "schedule", "assistant", "session", "trace", "span"),
    *("memory_node", "memory_event", "worker", "effect", "resources", "token"),
)
"""What `perdure why` explains."""
KINDS = "id_kinds"
"""The attribute of an argument or option that says of which kinds its ids are."""
UNLESS = "unless"
"""The attribute that names the option with which an id is taken as it is."""


class Ambiguous(InvalidInput):
    """Several ids begin with what was given."""


def id_argument(metavar: str, *kinds: Kind, help: str | None = None) -> Any:
    """An argument that takes ids of these kinds."""
    about = help or "ID, its first characters, or `last`."
    made = typer.Argument(metavar=metavar, help=about, show_default=False, autocompletion=_completer(kinds))
    setattr(made, KINDS, kinds)
    return made


def id_option(metavar: str, help: str, *names: str, kinds: Sequence[Kind], unless: str | None = None) -> Any:
    """An option that takes ids of these kinds; with the option `unless` it takes a new one."""
    made = typer.Option(*names, metavar=metavar, help=help, autocompletion=_completer(kinds))
    setattr(made, KINDS, tuple(kinds))
    setattr(made, UNLESS, unless)
    return made


# --- from what was typed to an id -------------------------------------------------------------------------


def kinds_of(hints: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a command that take ids."""
    found = {}
    for name, hint in hints.items():
        info = next((each for each in get_args(hint) if hasattr(each, KINDS)), None)
        if info is not None:
            found[name] = info
    return found


async def resolve_all(
    connection: Connection, given: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """What a command was given, with whole ids. With --yes only whole ids and `last` are taken."""
    found = dict(given)
    whole = bool(given.get("yes"))
    for name, info in parameters.items():
        value, unless = given.get(name), getattr(info, UNLESS, None)
        if unless is not None and given.get(unless):
            continue
        if isinstance(value, str):
            found[name] = await resolve(connection, value, getattr(info, KINDS), whole=whole)
        elif value:
            kinds = getattr(info, KINDS)
            found[name] = [await resolve(connection, each, kinds, whole=whole) for each in value]
    return found


async def resolve(connection: Connection, text: str, kinds: Sequence[Kind], *, whole: bool = False) -> str:
    """The id that begins with a text. What nothing is known of stays: the command reports it."""
    if not text or (whole and text != LAST):
        return text
    if text == LAST:
        # A server starts jobs by itself: the last thing that somebody did is not one of them.
        kinds = [each for each in kinds if each != "job"] or kinds
    try:
        found = await connection.diagnostics.find(text, kind=list(kinds), limit=SHOWN + 1)
    except (NotFound, NotSupported, InvalidInput):
        # A server of an earlier release knows whole ids only.
        return text
    if text == LAST:
        newest = max(found, key=lambda each: each.time or 0.0, default=None)
        if newest is None:
            raise NotFound(f"there is no {_one_of(kinds)} yet")
        return _id(newest)
    exact = [each for each in found if text in (each.id, _id(each))]
    if exact or len(found) == 1:
        return _id(next(iter(exact or found)))
    if len(found) > 1:
        raise Ambiguous(_ambiguous(text, found))
    return text


def _id(found: FoundId) -> str:
    return found.title if found.kind == "schedule" and found.title else found.id


def _one_of(kinds: Sequence[Kind]) -> str:
    return " or ".join(each.replace("_", " ") for each in kinds)


def _ambiguous(text: str, found: Sequence[FoundId]) -> str:
    named = ", ".join(f"{each.kind.replace('_', ' ')} {_id(each)}" for each in found[:SHOWN])
    more = " and more" if len(found) > SHOWN else ""
    return f"{text!r} is the beginning of several ids: {named}{more}; give more characters"


# --- what shells offer ------------------------------------------------------------------------------------

Offer = tuple[str, str]


def completer(ask: Callable[[Connection, str], Awaitable[Sequence[Offer]]]) -> Callable[..., list[Offer]]:
    """A function that offers what a server has; without a server it offers nothing."""

    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        target = Target(*(ctx.params.get(name) for name in ("url", "token", "namespace")))

        async def offers() -> Sequence[Offer]:
            async with asyncio.timeout(COMPLETION_SECONDS), target.open() as connection:
                return await ask(connection, incomplete)

        try:
            return [each for each in asyncio.run(offers()) if each[0].startswith(incomplete)]
        except (PerdureError, OSError, TimeoutError):
            return []

    return complete


def _completer(kinds: Sequence[Kind]) -> Callable[..., list[Offer]]:
    async def ask(connection: Connection, incomplete: str) -> list[Offer]:
        found = await connection.diagnostics.find(
            incomplete,
            kind=list(kinds),
            limit=OFFERED,
        )
        offers = [(_id(each), _about(each)) for each in found]
        return [*offers, (LAST, "the newest")] if not incomplete else offers

    return completer(ask)


def _about(found: FoundId) -> str:
    parts = (found.kind.replace("_", " "), found.title, found.status)
    return " ".join(part for part in parts if part and part != _id(found))


async def _assistants(connection: Connection, incomplete: str) -> list[Offer]:
    page = await connection.assistants.search(limit=OFFERED)
    offers = {each.agent: "agent" for each in page.items}
    return [*offers.items(), *((each.assistant_id, each.name) for each in page.items)]


complete_assistant = completer(_assistants)
ThreadFilter = Annotated[
    str | None, id_option("THREAD_ID", "Filter by thread.", "--thread", kinds=["thread"])
]
