"""IDs on the command line: whole ones, their first characters, and `last`; and what shells offer for them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from perdure.cli.shell.target import CommandConnection, CommandTarget
from perdure.kernel.errors import InvalidInput, NotFound, NotSupported, PerdureError

if TYPE_CHECKING:
    from perdure.assistants.service import Assistants
    from perdure.diagnostics.finding import IdMatch, Kind

LAST = "last"
SHOWN = 8
"""How many candidates an ambiguous beginning names."""
OFFERED = 50
"""How many ids a shell offers."""
MOST_NAMES = 1000
"""How many assistants are looked through."""
QUEUES = ("default", "agents", "workflows")
"""Queues that every server has."""
BEGINNING = re.compile(r"[0-9a-f][0-9a-f-]{3,34}")
"""What can be the beginning of an assistant's id; a whole one is a UUID of 36 characters."""
COMPLETION_SECONDS = 1.0
"""How long a shell waits for a server."""
ROLLOUTS: tuple[Kind, ...] = ("rollout", "run", "phase", "job")
"""What is a rollout."""
EXPLAINED: tuple[Kind, ...] = (
    *ROLLOUTS,
    *("thread", "attempt", "workflow_run", "approval", "schedule", "assistant", "session", "trace", "span"),
    *("memory_node", "memory_event", "memory_grip", "worker", "effect", "resources", "token"),
)
"""What `perdure why` explains."""
SINGULAR = {"resources": "version of resources", "effect": "entry of the outbox"}
"""Kinds with another word for one of them."""
BY_ITSELF: tuple[Kind, ...] = (
    *("job", "phase", "attempt", "session", "trace", "span", "worker", "effect"),
    *("memory_node", "memory_event", "memory_grip"),
)
"""What comes without anybody: the last thing that somebody did is none of it."""
KINDS = "id_kinds"
"""The attribute of an argument or option that says of which kinds its ids are."""
UNLESS = "unless"
"""The attribute that names the option with which an id is taken as it is."""
AMONG = "among"
"""The attribute with the function that gives the ids of which one is meant, the newest first."""
LOOKS = "looks"
"""The attribute with the function that tells whether a text looks like the beginning of an id."""
Among = Callable[[CommandConnection, Mapping[str, Any], str], Awaitable[Sequence[str]]]
"""Gets the connection, what the command was given, and the beginning of an id."""


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


def part_argument(metavar: str, help: str, among: Among) -> Any:
    """An argument that takes the id of a part, such as a span of a trace."""
    made = typer.Argument(
        metavar=metavar, help=help, show_default=False, autocompletion=_part_completer(among)
    )
    setattr(made, AMONG, among)
    return made


def part_option(metavar: str, help: str, *names: str, among: Among) -> Any:
    """An option that takes the id of a part, such as an attempt of a rollout."""
    made = typer.Option(*names, metavar=metavar, help=help, autocompletion=_part_completer(among))
    setattr(made, AMONG, among)
    return made


# --- from what was typed to an id -------------------------------------------------------------------------


def to_resolve(given: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """Whether something that was given may be the beginning of an id."""
    return any(given[name] and getattr(info, LOOKS, bool)(given[name]) for name, info in parameters.items())


def list_id_kinds(hints: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a command that take ids."""
    found = {}
    for name, hint in hints.items():
        info = next((each for each in get_args(hint) if hasattr(each, KINDS) or hasattr(each, AMONG)), None)
        if info is not None:
            found[name] = info
    return found


async def resolve_all(
    connection: CommandConnection, given: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """What a command was given, with whole ids. With --yes only whole ids and `last` are taken."""
    found = dict(given)
    whole = bool(given.get("yes"))
    # A part is looked for in what it belongs to, whose id is therefore taken before.
    for name, info in sorted(parameters.items(), key=lambda each: hasattr(each[1], AMONG)):
        value, unless = given.get(name), getattr(info, UNLESS, None)
        if unless is not None and given.get(unless):
            continue
        if hasattr(info, AMONG):
            if value and getattr(info, LOOKS, bool)(value):
                found[name] = await _resolve_part(connection, value, info, found)
        elif isinstance(value, str):
            found[name] = await resolve(connection, value, getattr(info, KINDS), whole=whole)
        elif value:
            kinds = getattr(info, KINDS)
            found[name] = [await resolve(connection, each, kinds, whole=whole) for each in value]
    return found


async def resolve(
    connection: CommandConnection, text: str, kinds: Sequence[Kind], *, whole: bool = False
) -> str:
    """The id that begins with a text. What nothing is known of stays: the command reports it."""
    if not text or (whole and text != LAST):
        return text
    if text == LAST:
        kinds = [each for each in kinds if each not in BY_ITSELF] or kinds
    try:
        found = await connection.diagnostics.find(text, kind=list(kinds), limit=SHOWN + 1)
    except (NotFound, NotSupported, InvalidInput):
        # A server of an earlier release knows whole ids only.
        return text
    if text == LAST:
        newest = max(found, key=lambda each: each.time or 0.0, default=None)
        if newest is None:
            raise NotFound(f"there is no {_format_kinds(kinds)} yet")
        return _id(newest)
    exact = [each for each in found if text in (each.id, _id(each))]
    if exact or len(found) == 1:
        return _id(next(iter(exact or found)))
    if len(found) > 1:
        raise Ambiguous(_ambiguous(text, found))
    return await _own_assistant(connection, text) if "assistant" in kinds else text


async def _own_assistant(connection: CommandConnection, agent: str) -> str:
    """The id of the assistant that an agent got by itself; the text if there is no such agent."""
    found = await connection.assistants.search(agent=agent, limit=MOST_NAMES)
    return next((each.assistant_id for each in found.items if each.system), agent)


async def _resolve_part(connection: CommandConnection, text: str, info: Any, given: Mapping[str, Any]) -> str:
    """The id of a part that begins with a text; what no part has stays, and the command reports it."""
    among: Among = getattr(info, AMONG)
    ids = await among(connection, given, "" if text == LAST else text)
    if text == LAST:
        if not ids:
            raise NotFound(f"there is no {info.metavar.removesuffix('_ID').lower()} yet")
        return ids[0]
    matching = [each for each in ids if each.startswith(text)]
    if text in matching or not matching:
        return text
    if len(matching) > 1:
        named = ", ".join(matching[:SHOWN]) + (" and more" if len(matching) > SHOWN else "")
        raise Ambiguous(f"{text!r} is the beginning of several ids: {named}; give more characters")
    return matching[0]


def _id(found: IdMatch) -> str:
    return found.title if found.kind == "schedule" and found.title else found.id


def _format_kinds(kinds: Sequence[Kind]) -> str:
    if len(kinds) > len(ROLLOUTS):
        return "newest one: nothing is stored"
    return " or ".join(SINGULAR.get(each, each.replace("_", " ")) for each in kinds)


def _ambiguous(text: str, found: Sequence[IdMatch]) -> str:
    # A schedule is called by its name elsewhere; here it is listed because of its id.
    named = ", ".join(
        f"{each.kind.replace('_', ' ')} {each.id if each.id.startswith(text) else _id(each)}"
        for each in found[:SHOWN]
    )
    more = " and more" if len(found) > SHOWN else ""
    return f"{text!r} is the beginning of several ids: {named}{more}; give more characters"


# --- what shells offer ------------------------------------------------------------------------------------

Offer = tuple[str, str]


def completer(
    ask: Callable[[CommandConnection, str], Awaitable[Sequence[Offer]]],
) -> Callable[..., list[Offer]]:
    """A function that offers what a server has; without a server it offers nothing."""

    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        target = CommandTarget(*(ctx.params.get(name) for name in ("url", "token", "namespace")))

        async def offers() -> Sequence[Offer]:
            async with asyncio.timeout(COMPLETION_SECONDS), target.open() as connection:
                return await ask(connection, incomplete)

        try:
            return [each for each in asyncio.run(offers()) if each[0].startswith(incomplete)]
        except (PerdureError, OSError, TimeoutError):
            return []

    return complete


def _part_completer(among: Among) -> Callable[..., list[Offer]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        async def ask(connection: CommandConnection, incomplete: str) -> list[Offer]:
            ids = await among(connection, ctx.params, incomplete)
            return [(each, "") for each in ids[:OFFERED]]

        return completer(ask)(ctx, incomplete)

    return complete


def _completer(kinds: Sequence[Kind]) -> Callable[..., list[Offer]]:
    async def ask(connection: CommandConnection, incomplete: str) -> list[Offer]:
        found = await connection.diagnostics.find(
            incomplete,
            kind=list(kinds),
            limit=OFFERED,
        )
        offers = [(_id(each), _about(each)) for each in found]
        return [*offers, (LAST, "the newest")] if not incomplete else offers

    return completer(ask)


def _about(found: IdMatch) -> str:
    parts = (found.kind.replace("_", " "), found.title, found.status)
    return " ".join(part for part in parts if part and part != _id(found))


async def _agents(connection: CommandConnection, incomplete: str) -> list[Offer]:
    page = await connection.assistants.search(limit=MOST_NAMES)
    return list({each.agent: "agent" for each in page.items}.items())


async def _assistants(connection: CommandConnection, incomplete: str) -> list[Offer]:
    page = await connection.assistants.search(limit=MOST_NAMES)
    offers = {each.agent: "agent" for each in page.items}
    return [*offers.items(), *((each.assistant_id, each.name) for each in page.items)]


async def _workflows(connection: CommandConnection, incomplete: str) -> list[Offer]:
    return [(each.name, each.description or "workflow") for each in await connection.workflows.list()]


async def _queues(connection: CommandConnection, incomplete: str) -> list[Offer]:
    found = {each.queue: f"{each.ready} ready" for each in await connection.rollouts.queues()}
    return list({**dict.fromkeys(QUEUES, "queue"), **found}.items())


complete_agent = completer(_agents)
complete_assistant = completer(_assistants)
complete_workflow = completer(_workflows)
complete_queue = completer(_queues)
complete_schedule = _completer(["schedule"])
complete_thread = _completer(["thread"])


async def _assistant_ids(connection: CommandConnection, given: Mapping[str, Any], start: str) -> list[str]:
    """The ids of assistants, and the names of agents, which are taken as they are."""
    page = await connection.assistants.search(limit=MOST_NAMES)
    return [*(each.assistant_id for each in page.items), *(each.agent for each in page.items)]


def assistant_argument() -> Any:
    """An argument that takes the name of an agent, or the id of an assistant."""
    made = part_argument("ASSISTANT", "Agent name, or assistant ID or its first characters.", _assistant_ids)
    made.autocompletion = complete_assistant
    setattr(made, LOOKS, lambda given: given == LAST or BEGINNING.fullmatch(given) is not None)
    return made


AssistantArgument = Annotated[str, assistant_argument()]
ThreadFilter = Annotated[
    str | None, id_option("THREAD_ID", "Filter by thread.", "--thread", kinds=["thread"])
]


async def assistant_exists(assistants: Assistants, name: str) -> bool:
    """Whether there is an assistant of this id, or an agent of this name."""
    from perdure.assistants.model import system_id

    for assistant_id in (name, system_id(name)):
        try:
            await assistants.get(assistant_id)
        except NotFound:
            continue
        return True
    return False
