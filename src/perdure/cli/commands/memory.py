"""`perdure memory`: what agents did, as events, as a table of contents, and by search."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import complete_agent, id_argument
from perdure.cli.shell.options import (
    CommandContext,
    CommandGroup,
    LimitOption,
    duration,
    flag,
    number,
    text,
)
from perdure.cli.shell.output import shorten, warn
from perdure.cli.shell.results import PAGE_SIZE, CommandResults, listing, pages, showing
from perdure.cli.shell.target import CommandTarget

if TYPE_CHECKING:
    from perdure.jobs.records import Job
    from perdure.memory.records import MemoryEvent, SearchHit, TocNode

EMPTY = """Memory is empty. Store an event, then search for it:

  perdure memory ingest "We chose SQLite for the first release" --session notes
  perdure memory search sqlite

`perdure dev` also remembers what its agents do."""
EMPTY_TOC = """The table of contents is empty. It is built from events, about a minute after they arrive:

  perdure memory ingest "We chose SQLite for the first release" --session notes
  perdure memory browse"""
TOC_COLUMNS = ("node_id", "title", "status", "version")
HOOK_SECONDS = 5.0
CONTINUE = '{"continue":true}'
MIB = 1 << 20

REBUILT = (("days", "days"), ("built", "nodes"), ("failed", "failed"), ("indexed", "texts in the index"))
"""Counts of a rebuild, and their words."""

app = CommandGroup("Search and browse what agents did (values by key are in `perdure item`).")

NodeArgument = Annotated[str, id_argument("NODE_ID", "memory_node", help="Such as toc:day:2024-01-15.")]


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


# --- ingesting --------------------------------------------------------------------------------------------


@app.client_command("ingest")
async def ingest(
    context: CommandContext,
    message: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="What happened; @FILE reads events, one JSON a line."),
    ] = None,
    session: Annotated[str, text("ID", "Session that the event belongs to.", "--session")] = "cli",
    role: Annotated[str, text("ROLE", "user, assistant, system or tool.", "--role")] = "user",
    kind: Annotated[str | None, text("TYPE", "Event type, such as tool_result.", "--type")] = None,
    agent: Annotated[
        str | None, text("NAME", "Agent that it is about.", "--agent", complete=complete_agent)
    ] = None,
    at: Annotated[str | None, text("TIME", "When it happened (ISO 8601; default: now).", "--time")] = None,
    id: Annotated[str | None, text("ULID", "Id of the event (default: a new one).", "--id")] = None,
) -> None:
    """Store an event, or the events of a file. An id that is known is not stored again."""
    events = _build_events(message, session, role, kind, agent, at, id)
    answers: list[Any] = []
    async with context.connect(create=True) as connection:
        for start in range(0, len(events), 1000):
            answers += await connection.memory.ingest_many(events[start : start + 1000])
        await connection.finish_memory()
    created = sum(answer.created for answer in answers)
    present = len(answers) - created
    noun = "event" if created == 1 else "events"
    context.answer(
        {"items": answers}, f"Stored {created} {noun}{f', {present} known before' if present else ''}."
    )


def _build_events(
    message: str | None,
    session: str,
    role: str,
    kind: str | None,
    agent: str | None,
    at: str | None,
    id: str | None,
) -> list[Any]:
    import msgspec

    from perdure.kernel.ids import RandomIds, ulid
    from perdure.memory.records import NewMemoryEvent

    if message is None:
        raise typer.BadParameter("give a TEXT, or @FILE")
    if message.startswith("@"):
        try:
            with open(message[1:], "rb") as file:
                lines = [line for line in file if line.strip()]
            return [msgspec.json.decode(line, type=NewMemoryEvent) for line in lines]
        except (OSError, msgspec.MsgspecError) as error:
            raise typer.BadParameter(f"{message[1:]}: {error}") from None
    types = {"user": "user_message", "assistant": "assistant_message", "tool": "tool_result"}
    ms = _moment(at)
    event: dict[str, Any] = {
        "event_id": id or ulid(ms, RandomIds()),
        "session_id": session,
        "timestamp_ms": ms,
        "event_type": kind or types.get(role, "user_message"),
        "role": role,
        "text": message,
        "agent": agent,
    }
    return [NewMemoryEvent(**event)]


def _moment(at: str | None) -> int:
    if at is None:
        return int(time.time() * 1000)
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise typer.BadParameter(f"{at!r} is not a time; write 2024-01-15T10:00") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


# --- searching --------------------------------------------------------------------------------------------


@app.client_command("search")
async def search(
    context: CommandContext,
    query: Annotated[str, typer.Argument(metavar="QUERY", help='Words, "phrases", prefix* and -excluded.')],
    kind: Annotated[str | None, text("KIND", "Only event, node or grip.", "--kind")] = None,
    agent: Annotated[
        str | None, text("NAME", "Only what this agent did.", "--agent", complete=complete_agent)
    ] = None,
    since: Annotated[float | None, duration("How far back to look", "--since")] = None,
    mode: Annotated[str, text("MODE", "text, vector or hybrid.", "--mode")] = "hybrid",
    limit: Annotated[int, number("Maximum number of results.", "--limit", min=1, max=100)] = 10,
) -> None:
    """Search events and summaries, the best first. Each result names the events behind it."""
    filters: dict[str, Any] = {"mode": mode, "kind": kind, "agent": agent, "limit": limit}
    if since is not None:
        filters["since_ms"] = max(0, int((time.time() - since) * 1000))
    async with context.connect() as connection:
        result = await connection.memory.search(query, **filters)
    if context.as_json:
        context.output.document(result)
    elif not result.items:
        context.output.print("Nothing matches. Try fewer or other words." if result.documents else EMPTY)
    else:
        for place, hit in enumerate(result.items if kind else _distinct(result.items), 1):
            _print_hit(context, place, hit)


def _distinct(hits: Sequence[SearchHit]) -> list[SearchHit]:
    """Drop summaries whose events all appear in earlier hits, such as the year and month of one day."""
    shown_ids = {event.event_id for hit in hits if hit.kind == "event" for event in hit.events}
    shown = []
    for hit in hits:
        cited = {event.event_id for event in hit.events}
        if hit.kind == "event" or not cited or cited - shown_ids:
            shown.append(hit)
            shown_ids |= cited
    return shown


def _print_hit(context: CommandContext, place: int, hit: SearchHit) -> None:
    cited = [event.event_id for event in hit.events]
    where = [_time(hit.timestamp_ms), hit.kind, *([hit.agent] if hit.agent else [])]
    context.output.item(f"{place:>2}. ", shorten(hit.text, 220))
    context.output.print(f"    {'  '.join(where)}")
    if hit.kind != "event":
        context.output.print(f"    {hit.id}")
    more = f" and {len(cited) - 2} more" if len(cited) > 2 else ""
    context.output.print(f"    events: {', '.join(cited[:2]) or '-'}{more}")


# --- the table of contents --------------------------------------------------------------------------------


@app.client_command("browse")
async def browse(
    context: CommandContext,
    node_id: Annotated[
        str | None, id_argument("NODE_ID", "memory_node", help="List its children; without it, the years.")
    ] = None,
    limit: LimitOption = 50,
) -> None:
    """List the table of contents: years, and below a node its months, weeks, days or segments."""
    async with context.connect() as connection:
        if node_id is None:
            nodes = await pages(
                lambda limit, cursor: connection.memory.toc_root(limit=limit, cursor=cursor), limit
            )
        else:
            page = await connection.memory.browse(node_id, limit=min(limit, PAGE_SIZE))
            nodes = CommandResults(page.items, more=page.has_more)
            if not page.items:
                # A segment has nothing below it; an unknown node is an error here.
                await connection.memory.get_node(node_id)
    listing(
        context, nodes, TOC_COLUMNS, _node_row, noun="nodes", empty=EMPTY_TOC, filtered=node_id is not None
    )


def _node_row(node: TocNode) -> tuple[Any, ...]:
    return node.node_id, shorten(node.title, 32), node.status, node.version


@app.client_command("show")
async def show(context: CommandContext, node_id: NodeArgument) -> None:
    """Show a node: what happened, line by line, each with the grips to its events."""
    async with context.connect() as connection:
        node = await connection.memory.get_node(node_id)
    rows = (
        ("title", node.title),
        ("status", node.status),
        ("version", str(node.version)),
        ("from", _time(node.start_time_ms)),
        ("to", _time(node.end_time_ms)),
        ("keywords", ", ".join(node.keywords) or None),
        ("agents", ", ".join(node.agents) or None),
        ("error", node.error),
        ("children", _children(node)),
    )
    if context.as_json:
        context.output.document(node)
        return
    showing(context, node, rows)
    context.output.print("")
    for bullet in node.bullets:
        context.output.item("- ", bullet.text)
        for grip in bullet.grip_ids[:2]:
            context.output.print(f"    {grip}")


def _children(node: TocNode) -> str | None:
    count = len(node.child_node_ids)
    return f"{count}: perdure memory browse {node.node_id}" if count else None


@app.client_command("expand")
async def expand(
    context: CommandContext,
    grip_id: Annotated[
        str,
        id_argument(
            "GRIP_ID", "memory_grip", help="As `perdure memory show` prints it, its beginning, or `last`."
        ),
    ],
    before: Annotated[int, number("Events before it.", "--before", min=0, max=100)] = 3,
    after: Annotated[int, number("Events after it.", "--after", min=0, max=100)] = 3,
) -> None:
    """Show the events behind a line of a summary, and what was said around them."""
    async with context.connect() as connection:
        grip = await connection.memory.expand_grip(grip_id, events_before=before, events_after=after)
    if context.as_json:
        context.output.document(grip)
        return
    marked = [(event, ">") for event in grip.excerpt_events]
    around = [(event, " ") for event in grip.events_before], [(event, " ") for event in grip.events_after]
    rows = [_event_row(event, mark) for event, mark in (*around[0], *marked, *around[1])]
    context.output.table(("", "time", "role", "text"), rows)


def _event_row(event: MemoryEvent, mark: str) -> tuple[Any, ...]:
    return mark, _time(event.timestamp_ms), event.role, shorten(event.text, 200)


# --- operating --------------------------------------------------------------------------------------------


@app.client_command("stats")
async def stats(context: CommandContext) -> None:
    """Show how much memory holds."""
    async with context.connect() as connection:
        statistics = await connection.memory.stats()
    rows = (
        ("Path", statistics.path),
        ("Events", f"{statistics.events}"),
        ("TOC Nodes", f"{statistics.toc_nodes}"),
        ("Grips", f"{statistics.grips}"),
        ("Outbox", f"{statistics.outbox}"),
        ("Disk Usage", f"{statistics.disk_bytes / MIB:.2f} MB"),
    )
    if context.as_json:
        context.output.document(statistics)
        return
    for name, value in rows:
        context.output.print(f"{name + ':':<12}{value}")


@app.client_command("rebuild")
async def rebuild(
    context: CommandContext,
    index: Annotated[bool, flag("--index/--no-index", help="Index all texts again.")] = True,
    toc: Annotated[bool, flag("--toc/--no-toc", help="Cut and summarise everything again.")] = True,
) -> None:
    """Rebuild the table of contents and the index from the events, also of days that are not over."""
    async with context.connect() as connection:
        job = await connection.memory.rebuild(index=index, toc=toc)
        done = await connection.finish_job(job.job_id)
    context.answer(done, _rebuilt(done))


def _rebuilt(job: Job) -> str:
    """Describe the result of a rebuild in a sentence."""
    result = job.result
    if not isinstance(result, dict):
        return f"The rebuild is {job.status}: {job.error}"
    counts = [_counted(result.get(name, 0), word) for name, word in REBUILT]
    return f"Rebuilt: {', '.join(counts)}."


def _counted(count: int, words: str) -> str:
    """Format a count: `1 day`, `2 days`."""
    first, _, rest = words.partition(" ")
    return " ".join(filter(None, (str(count), first.removesuffix("s") if count == 1 else first, rest)))


@app.command("hook")
def hook(
    url: Annotated[str | None, text("URL", "Server URL.", "--url", variable="PERDURE_URL")] = None,
    token: Annotated[str | None, text("TOKEN", "Token.", "--token", variable="PERDURE_TOKEN")] = None,
    namespace: Annotated[
        str | None, text("NAME", "Namespace.", "--namespace", variable="PERDURE_NAMESPACE")
    ] = None,
    as_json: Annotated[bool, flag("--json", help="Print JSON only, as it does anyway.")] = False,
) -> None:
    """Store what a hook of a coding agent tells on stdin. It always answers that the agent may go on."""
    try:
        asyncio.run(_take_hook(CommandTarget(url, token, namespace, None)))
    except Exception as error:  # noqa: BLE001 - a hook must never stop the agent that calls it
        warn(f"nothing was remembered: {error}")
    typer.echo(CONTINUE)


async def _take_hook(target: CommandTarget) -> None:
    from perdure.kernel.codec import decode_json
    from perdure.memory.hooks import hook_to_event

    line = sys.stdin.buffer.readline()
    event = hook_to_event(decode_json(line), int(time.time() * 1000))
    async with asyncio.timeout(HOOK_SECONDS), target.open() as connection:
        await connection.memory.ingest(event)
