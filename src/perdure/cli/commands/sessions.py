"""`perdure session`: messages and actions of agents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import id_argument
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption, flag, text
from perdure.cli.shell.output import ago, shorten
from perdure.cli.shell.results import listing, pages, showing

if TYPE_CHECKING:
    from perdure.eventlog.port import LogName
    from perdure.sessions.model import MessageMatch, Session
    from perdure.sessions.records import Message, Usage
    from perdure.sessions.service import Sessions

EMPTY = """No sessions yet. Import a transcript of Claude Code, Codex, pi or the OpenAI Agents SDK:

  perdure session import ~/.claude/projects/*/*.jsonl"""
COLUMNS = ("session_id", "project", "model", "messages", "updated", "first message")
TAIL_SECONDS = 20.0
RAW_LINES = 50
"""Number of lines that show whether a session was imported without translation."""
IMPORT = "import"
"""Writer of imported lines; importing a file again adds only its new lines."""

app = CommandGroup("List, show, follow, search, import and export agent sessions.")

IdArgument = Annotated[str, id_argument("SESSION_ID", "session")]
ProjectOption = Annotated[
    str | None, text("PROJECT", "Project of the session, such as -home-agent-workspace.", "--project", "-p")
]
FilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False, readable=True)
]
SubAgentOption = Annotated[
    str, text("NAME", "Read a sub-agent of the session, such as subagents/agent-1.", "--sub-agent")
]
EventsOption = Annotated[bool, flag("--events", help="Also show lines that are not messages.")]


@app.client_command("list")
async def list_sessions(
    context: CommandContext, project: ProjectOption = None, limit: LimitOption = 20
) -> None:
    """List sessions, latest first."""
    async with context.connect() as connection:
        sessions = await pages(
            lambda limit, cursor: connection.sessions.list(project=project, limit=limit, cursor=cursor), limit
        )
    listing(context, sessions, COLUMNS, _row, noun="sessions", empty=EMPTY, filtered=project is not None)


def _row(session: Session) -> tuple[Any, ...]:
    first = None if session.first_message is None else shorten(session.first_message, 40)
    return (
        session.session_id,
        session.project,
        session.model,
        session.messages,
        ago(session.updated_at),
        first,
    )


@app.client_command("show")
async def show_session(
    context: CommandContext,
    session_id: IdArgument,
    project: ProjectOption = None,
    sub_agent: SubAgentOption = "",
    events: EventsOption = False,
    full: Annotated[bool, flag("--full", help="Show tool results whole that were cut.")] = False,
    limit: LimitOption = 1000,
) -> None:
    """Show a session and its messages."""
    async with context.connect() as connection:
        session = await connection.sessions.get(session_id, project=project)
        messages = await _messages(connection.sessions, session, sub_agent, events, limit)
        if full:
            await _complete(connection.sessions, session, messages)
    if context.as_json:
        context.output.document({"session": session, "messages": messages})
        return
    showing(context, session, _facts(session))
    for message in messages:
        context.output.print("")
        _print(context, message)


async def _messages(
    sessions: Sessions, session: Session, sub_agent: str, events: bool, limit: int
) -> list[Message]:
    messages: list[Message] = []
    after = 0
    while len(messages) < limit:
        page = await sessions.messages(
            session.session_id, project=session.project, sub_agent=sub_agent, after=after, events=events
        )
        messages += page.items
        after = page.after
        if page.end:
            break
    return messages[:limit]


async def _complete(sessions: Sessions, session: Session, messages: list[Message]) -> None:
    """Load the whole content of truncated tool results."""
    for message in messages:
        if message.blob is not None:
            blob = await sessions.blob(session.session_id, message.blob, project=session.project)
            message.text = blob.content


def _tokens(usage: Usage) -> str:
    return f"{usage.input_tokens} in, {usage.output_tokens} out"


def _facts(session: Session) -> tuple[tuple[str, Any], ...]:
    usage = session.usage
    tokens = None if usage is None else _tokens(usage)
    cost = None if usage is None or usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    return (
        ("session", session.session_id),
        ("project", session.project),
        ("directory", session.cwd),
        ("model", session.model),
        ("messages", session.messages),
        ("turns", session.turns),
        ("tool calls", session.tool_calls),
        ("tokens", tokens),
        ("cost", cost),
        ("started", ago(session.started_at)),
        ("updated", ago(session.updated_at)),
        ("sub-agents", ", ".join(agent.name for agent in session.sub_agents) or None),
    )


def _print(context: CommandContext, message: Message) -> None:
    """Print a message as `role: text`, with its tool calls."""
    label = message.role if message.kind is None else f"{message.role} ({message.kind})"
    if message.is_error:
        label += ", error"
    if message.role == "result" and not message.text and message.usage is not None:
        context.output.print(f"{label}: {_tokens(message.usage)}")
        return
    for thought in message.reasoning:
        context.output.print(f"{label}, thinking: {thought}")
    if message.text or not (message.tool_calls or message.reasoning):
        context.output.print(f"{label}: {message.text}")
    for call in message.tool_calls:
        context.output.print(f"{label} calls {call.name}: {shorten(call.input, 200)}")


@app.client_command("tail")
async def tail_session(
    context: CommandContext,
    session_id: IdArgument,
    project: ProjectOption = None,
    sub_agent: SubAgentOption = "",
    events: EventsOption = False,
) -> None:
    """Show the messages of a session, and follow it until Ctrl-C."""
    after = 0
    async with context.connect() as connection:
        while True:
            page = await connection.sessions.messages(
                session_id,
                project=project,
                sub_agent=sub_agent,
                after=after,
                events=events,
                wait=TAIL_SECONDS,
            )
            after = page.after
            for message in page.items:
                if context.as_json:
                    context.output.line(message)
                else:
                    _print(context, message)


@app.client_command("search")
async def search_sessions(
    context: CommandContext,
    query: Annotated[str, typer.Argument(metavar="TEXT")],
    project: ProjectOption = None,
    scope: Annotated[str, text("SCOPE", "Search messages, errors or all.", "--scope")] = "messages",
    limit: LimitOption = 20,
) -> None:
    """Search the text of messages, latest sessions first."""
    from perdure.cli.shell.options import parse_choice
    from perdure.sessions.model import SCOPES

    chosen = parse_choice(scope, SCOPES, "--scope")
    async with context.connect() as connection:
        result = await connection.sessions.search(
            query, scope=chosen, project=project, limit=min(limit, 1000)
        )
    if context.as_json:
        context.output.document(result)
        return
    columns = ("session_id", "role", "when", "text")
    listing(context, result.items, columns, _match_row, noun="messages", empty=EMPTY, filtered=True)
    if not result.complete:
        context.output.print("There may be more: use --limit, --project or a rarer word.")


def _match_row(match: MessageMatch) -> tuple[Any, ...]:
    return match.session_id, match.role, ago(match.time), shorten(match.text, 100)


@app.client_command("import")
async def import_sessions(
    context: CommandContext,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False, readable=True)
    ],
    project: ProjectOption = None,
    session_id: Annotated[
        str | None, text("SESSION_ID", "Id of the session, for a single file.", "--session-id")
    ] = None,
) -> None:
    """Import transcripts: Claude Code, Codex, pi or OpenAI Agents SDK, one JSON object a line.

    A file that was imported before adds only its new lines.
    """
    from perdure.kernel.errors import InvalidInput
    from perdure.sessions.batches import in_batches
    from perdure.sessions.transcripts.files import find_name, read_lines, read_objects

    if session_id is not None and len(files) > 1:
        raise InvalidInput("--session-id is for a single file")
    imported: list[dict[str, Any]] = []
    async with context.connect(create=True) as connection:
        for file in files:
            name = find_name(file, project=project, session_id=session_id)
            number = 1
            as_it_is = await _has_untranslated(connection.sessions, name)
            lines = read_objects(file) if as_it_is else read_lines(file)
            for batch in in_batches(lines):
                await connection.sessions.append(
                    name.session_id,
                    batch,
                    project=name.project,
                    sub_agent=name.subpath,
                    writer=IMPORT,
                    first=number,
                )
                number += len(batch)
            row = {"file": str(file), "session_id": name.session_id, "project": name.project}
            imported.append({**row, "lines": number - 1})
    columns = ("file", "session_id", "project", "lines")
    listing(context, imported, columns, lambda row: tuple(row.values()), noun="files", empty=EMPTY)


async def _has_untranslated(sessions: Sessions, name: LogName) -> bool:
    """Return whether a session has untranslated lines of another tool, as 0.5.0 imported them.

    New lines of its file are then imported the same way, so that lines keep their numbers.
    """
    from perdure.kernel.errors import NotFound
    from perdure.sessions.transcripts.files import LONG_LINE
    from perdure.sessions.transcripts.reading import is_foreign
    from perdure.sessions.transcripts.values import mapping

    try:
        page = await sessions.lines(
            name.session_id, project=name.project, sub_agent=name.subpath, limit=RAW_LINES
        )
    except NotFound:
        return False
    return any(len(line) <= LONG_LINE and is_foreign(mapping(line)) for line in page.items)


@app.client_command("export")
async def export_session(
    context: CommandContext,
    session_id: IdArgument,
    project: ProjectOption = None,
    sub_agent: SubAgentOption = "",
    output: Annotated[
        Path | None, text("FILE", "File to write (default: standard output).", "--output", "-o")
    ] = None,
    original: Annotated[
        bool, flag("--original", help="Write lines of other tools as they came, and cut ones whole.")
    ] = False,
) -> None:
    """Write a session as JSON lines, as they were logged."""
    count, after = 0, 0
    file = None if output is None else output.open("w", encoding="utf-8")
    async with context.connect() as connection:
        while True:
            page = await connection.sessions.lines(
                session_id,
                project=project,
                sub_agent=sub_agent,
                after=after,
                limit=500,
                original=original,
            )
            for line in page.items:
                typer.echo(line, file=file)
            count, after = count + len(page.items), page.after
            if page.end:
                break
    if file is not None:
        file.close()
        context.answer({"file": str(output), "lines": count}, f"Wrote {count} lines to {output}.")
