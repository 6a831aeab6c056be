"""IDs on the command line: whole ids, their first characters, and `last`; and their completion in shells."""

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
"""Number of candidates listed for an ambiguous beginning."""
OFFERED = 50
"""Maximum ids that a shell offers."""
MOST_NAMES = 1000
"""Maximum assistants that are searched."""
QUEUES = ("default", "agents", "workflows")
"""Queues that every server has."""
BEGINNING = re.compile(r"[0-9a-f][0-9a-f-]{3,34}")
"""Possible beginning of an assistant's id; a whole id is a UUID of 36 characters."""
COMPLETION_SECONDS = 1.0
"""Maximum seconds that a shell waits for a server."""
ROLLOUTS: tuple[Kind, ...] = ("rollout", "run", "phase", "job")
"""Kinds that are rollouts."""
EXPLAINED: tuple[Kind, ...] = (
    *ROLLOUTS,
    *("thread", "attempt", "workflow_run", "approval", "schedule", "assistant", "session", "trace", "span"),
    *("memory_node", "memory_event", "memory_grip", "worker", "effect", "resources", "token"),
)
"""Kinds that `perdure why` explains."""
SINGULAR = {"resources": "version of resources", "effect": "entry of the outbox"}
"""Kinds with a special singular."""
BY_ITSELF: tuple[Kind, ...] = (
    *("job", "phase", "attempt", "session", "trace", "span", "worker", "effect"),
    *("memory_node", "memory_event", "memory_grip"),
)
"""Kinds that the server creates by itself, so `last` skips them."""
KINDS = "id_kinds"
"""Attribute of an argument or option: the kinds of its ids."""
UNLESS = "unless"
"""Attribute: the option with which an id is not resolved."""
AMONG = "among"
"""Attribute: the function that lists the possible ids, newest first."""
LOOKS = "looks"
"""Attribute: the function that checks whether a text can be the beginning of an id."""
Among = Callable[[CommandConnection, Mapping[str, Any], str], Awaitable[Sequence[str]]]
"""Lists ids from the connection, the command's arguments, and the beginning of an id."""


class Ambiguous(InvalidInput):
    """Raised if several ids begin with the given text."""


def id_argument(metavar: str, *kinds: Kind, help: str | None = None) -> Any:
    """Build an argument that takes ids of these kinds."""
    about = help or "ID, its first characters, or `last`."
    info = typer.Argument(metavar=metavar, help=about, show_default=False, autocompletion=_completer(kinds))
    setattr(info, KINDS, kinds)
    return info


def id_option(metavar: str, help: str, *names: str, kinds: Sequence[Kind], unless: str | None = None) -> Any:
    """Build an option that takes ids of these kinds; with the option `unless` it takes a new id."""
    info = typer.Option(*names, metavar=metavar, help=help, autocompletion=_completer(kinds))
    setattr(info, KINDS, tuple(kinds))
    setattr(info, UNLESS, unless)
    return info


def part_argument(metavar: str, help: str, among: Among) -> Any:
    """Build an argument that takes the id of a part, such as a span of a trace."""
    info = typer.Argument(
        metavar=metavar, help=help, show_default=False, autocompletion=_part_completer(among)
    )
    setattr(info, AMONG, among)
    return info


def part_option(metavar: str, help: str, *names: str, among: Among) -> Any:
    """Build an option that takes the id of a part, such as an attempt of a rollout."""
    info = typer.Option(*names, metavar=metavar, help=help, autocompletion=_part_completer(among))
    setattr(info, AMONG, among)
    return info


# --- from what was typed to an id -------------------------------------------------------------------------


def to_resolve(given: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """Return whether an argument may be the beginning of an id."""
    return any(given[name] and getattr(info, LOOKS, bool)(given[name]) for name, info in parameters.items())


def list_id_kinds(hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a command that take ids."""
    parameters = {}
    for name, hint in hints.items():
        info = next((part for part in get_args(hint) if hasattr(part, KINDS) or hasattr(part, AMONG)), None)
        if info is not None:
            parameters[name] = info
    return parameters


async def resolve_all(
    connection: CommandConnection, given: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the command's arguments with whole ids. With --yes only whole ids and `last` are accepted."""
    resolved = dict(given)
    whole = bool(given.get("yes"))
    # Resolve parts last, because they need the resolved id of their owner.
    for name, info in sorted(parameters.items(), key=lambda item: hasattr(item[1], AMONG)):
        value, unless = given.get(name), getattr(info, UNLESS, None)
        if unless is not None and given.get(unless):
            continue
        if hasattr(info, AMONG):
            if value and getattr(info, LOOKS, bool)(value):
                resolved[name] = await _resolve_part(connection, value, info, resolved)
        elif isinstance(value, str):
            resolved[name] = await resolve(connection, value, getattr(info, KINDS), whole=whole)
        elif value:
            kinds = getattr(info, KINDS)
            resolved[name] = [await resolve(connection, text, kinds, whole=whole) for text in value]
    return resolved


async def resolve(
    connection: CommandConnection, text: str, kinds: Sequence[Kind], *, whole: bool = False
) -> str:
    """Return the id that begins with a text. Return an unknown text unchanged."""
    if not text or (whole and text != LAST):
        return text
    if text == LAST:
        kinds = [kind for kind in kinds if kind not in BY_ITSELF] or kinds
    try:
        matches = await connection.diagnostics.find(text, kind=list(kinds), limit=SHOWN + 1)
    except (NotFound, NotSupported, InvalidInput):
        # A server of an earlier release supports only whole ids.
        return text
    if text == LAST:
        newest = max(matches, key=lambda match: match.time or 0.0, default=None)
        if newest is None:
            raise NotFound(f"there is no {_format_kinds(kinds)} yet")
        return _id(newest)
    exact = [match for match in matches if text in (match.id, _id(match))]
    if exact or len(matches) == 1:
        return _id(next(iter(exact or matches)))
    if len(matches) > 1:
        raise Ambiguous(_ambiguous(text, matches))
    return await _own_assistant(connection, text) if "assistant" in kinds else text


async def _own_assistant(connection: CommandConnection, agent: str) -> str:
    """Return the id of an agent's own assistant, or the text if there is no such agent."""
    page = await connection.assistants.search(agent=agent, limit=MOST_NAMES)
    return next((assistant.assistant_id for assistant in page.items if assistant.system), agent)


async def _resolve_part(connection: CommandConnection, text: str, info: Any, given: Mapping[str, Any]) -> str:
    """Return the id of a part that begins with a text. An unknown text is returned unchanged."""
    among: Among = getattr(info, AMONG)
    ids = await among(connection, given, "" if text == LAST else text)
    if text == LAST:
        if not ids:
            raise NotFound(f"there is no {info.metavar.removesuffix('_ID').lower()} yet")
        return ids[0]
    matching = [id for id in ids if id.startswith(text)]
    if text in matching or not matching:
        return text
    if len(matching) > 1:
        named = ", ".join(matching[:SHOWN]) + (" and more" if len(matching) > SHOWN else "")
        raise Ambiguous(f"{text!r} is the beginning of several ids: {named}; give more characters")
    return matching[0]


def _id(match: IdMatch) -> str:
    return match.title if match.kind == "schedule" and match.title else match.id


def _format_kinds(kinds: Sequence[Kind]) -> str:
    if len(kinds) > len(ROLLOUTS):
        return "newest one: nothing is stored"
    return " or ".join(SINGULAR.get(kind, kind.replace("_", " ")) for kind in kinds)


def _ambiguous(text: str, matches: Sequence[IdMatch]) -> str:
    # Elsewhere a schedule is shown by its name; here its id matched.
    named = ", ".join(
        f"{match.kind.replace('_', ' ')} {match.id if match.id.startswith(text) else _id(match)}"
        for match in matches[:SHOWN]
    )
    more = " and more" if len(matches) > SHOWN else ""
    return f"{text!r} is the beginning of several ids: {named}{more}; give more characters"


# --- what shells offer ------------------------------------------------------------------------------------

Offer = tuple[str, str]


def completer(
    ask: Callable[[CommandConnection, str], Awaitable[Sequence[Offer]]],
) -> Callable[..., list[Offer]]:
    """Build a function that completes from the server's data; without a server it offers nothing."""

    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        target = CommandTarget(*(ctx.params.get(name) for name in ("url", "token", "namespace")))

        async def offers() -> Sequence[Offer]:
            async with asyncio.timeout(COMPLETION_SECONDS), target.open() as connection:
                return await ask(connection, incomplete)

        try:
            return [offer for offer in asyncio.run(offers()) if offer[0].startswith(incomplete)]
        except (PerdureError, OSError, TimeoutError):
            return []

    return complete


def _part_completer(among: Among) -> Callable[..., list[Offer]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        async def ask(connection: CommandConnection, incomplete: str) -> list[Offer]:
            ids = await among(connection, ctx.params, incomplete)
            return [(id, "") for id in ids[:OFFERED]]

        return completer(ask)(ctx, incomplete)

    return complete


def _completer(kinds: Sequence[Kind]) -> Callable[..., list[Offer]]:
    async def ask(connection: CommandConnection, incomplete: str) -> list[Offer]:
        matches = await connection.diagnostics.find(
            incomplete,
            kind=list(kinds),
            limit=OFFERED,
        )
        offers = [(_id(match), _about(match)) for match in matches]
        return [*offers, (LAST, "the newest")] if not incomplete else offers

    return completer(ask)


def _about(match: IdMatch) -> str:
    parts = (match.kind.replace("_", " "), match.title, match.status)
    return " ".join(part for part in parts if part and part != _id(match))


async def _agents(connection: CommandConnection, incomplete: str) -> list[Offer]:
    page = await connection.assistants.search(limit=MOST_NAMES)
    return list({assistant.agent: "agent" for assistant in page.items}.items())


async def _assistants(connection: CommandConnection, incomplete: str) -> list[Offer]:
    page = await connection.assistants.search(limit=MOST_NAMES)
    offers = {assistant.agent: "agent" for assistant in page.items}
    return [*offers.items(), *((assistant.assistant_id, assistant.name) for assistant in page.items)]


async def _workflows(connection: CommandConnection, incomplete: str) -> list[Offer]:
    return [
        (workflow.name, workflow.description or "workflow") for workflow in await connection.workflows.list()
    ]


async def _queues(connection: CommandConnection, incomplete: str) -> list[Offer]:
    queues = {queue.queue: f"{queue.ready} ready" for queue in await connection.rollouts.queues()}
    return list({**dict.fromkeys(QUEUES, "queue"), **queues}.items())


complete_agent = completer(_agents)
complete_assistant = completer(_assistants)
complete_workflow = completer(_workflows)
complete_queue = completer(_queues)
complete_schedule = _completer(["schedule"])
complete_thread = _completer(["thread"])


async def _assistant_ids(connection: CommandConnection, given: Mapping[str, Any], start: str) -> list[str]:
    """List the ids of assistants and the names of agents, which are not resolved."""
    page = await connection.assistants.search(limit=MOST_NAMES)
    return [
        *(assistant.assistant_id for assistant in page.items),
        *(assistant.agent for assistant in page.items),
    ]


def assistant_argument() -> Any:
    """Build an argument that takes the name of an agent, or the id of an assistant."""
    info = part_argument("ASSISTANT", "Agent name, or assistant ID or its first characters.", _assistant_ids)
    info.autocompletion = complete_assistant
    setattr(info, LOOKS, lambda given: given == LAST or BEGINNING.fullmatch(given) is not None)
    return info


AssistantArgument = Annotated[str, assistant_argument()]
ThreadFilter = Annotated[
    str | None, id_option("THREAD_ID", "Filter by thread.", "--thread", kinds=["thread"])
]


async def assistant_exists(assistants: Assistants, name: str) -> bool:
    """Return whether an assistant has this id, or an agent this name."""
    from perdure.assistants.model import system_id

    for assistant_id in (name, system_id(name)):
        try:
            await assistants.get(assistant_id)
        except NotFound:
            continue
        return True
    return False
