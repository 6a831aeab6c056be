"""`perdure trace`: list, search and show traces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.commands.spans import add_spans, print_messages, span_duration
from perdure.cli.shell.ids import id_argument
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption, duration, flag, text
from perdure.cli.shell.output import ago, cost_text, shorten, tokens_text
from perdure.cli.shell.results import PAGE_SIZE, CommandResults, listing, more_hint, pages, showing
from perdure.cli.shell.target import CommandConnection

if TYPE_CHECKING:
    from perdure import Span
    from perdure.traces.records import Trace

EMPTY = """No traces yet. A worker traces the runs that it executes:

  perdure run create greet '{"name": "Ann"}'"""
COLUMNS = ("trace", "name", "started", "took", "spans", "failed", "tokens")
SHOWN_DIGITS = 16
"""Number of digits of a trace's id in a table; the first 12 of a run's trace are its time."""
LONGEST_NAME = 22
MOST_PAGES = 100
"""Maximum pages of one search; each searches up to 100 traces."""

app = CommandGroup("List, search and show traces.")

IdArgument = Annotated[
    str, id_argument("TRACE_ID", "trace", help="ID of a trace or of its run, its first digits, or `last`.")
]
SinceOption = Annotated[float | None, duration("Only traces started within this time")]


@app.client_command("list")
async def list_traces(context: CommandContext, since: SinceOption = None, limit: LimitOption = 20) -> None:
    """List traces, newest first."""
    await _list(context, {"since": _start(since)}, limit, filtered=since is not None)


@app.client_command("search")
async def search_traces(
    context: CommandContext,
    name: Annotated[str | None, text("TEXT", "Part of the name of a span in the trace.", "--name")] = None,
    service: Annotated[str | None, text("NAME", "Service of the trace.", "--service")] = None,
    session: Annotated[
        str | None, text("ID", "Conversation of the trace, such as a thread.", "--session")
    ] = None,
    error: Annotated[bool, flag("--error", help="Only traces in which a span has failed.")] = False,
    since: SinceOption = None,
    until: Annotated[float | None, duration("Only traces started before this time", "--until")] = None,
    attribute: Annotated[
        list[str] | None,
        text("KEY=VALUE", "Attribute of a span in the trace; repeatable.", "--attribute", "-a"),
    ] = None,
    limit: LimitOption = 20,
) -> None:
    """Search traces by span name, service, errors, time and attributes, newest first.

    A search by attributes looks through up to 10,000 traces.
    """
    wanted = {
        "name_contains": name,
        "service": service,
        "session_id": session,
        "error": error or None,
        "since": _start(since),
        "until": _start(until),
        "attribute": attribute,
    }
    await _list(context, wanted, limit, filtered=any(wanted.values()))


def _start(seconds: float | None) -> float | None:
    return None if seconds is None else time.time() - seconds


async def _list(context: CommandContext, wanted: dict[str, Any], limit: int, *, filtered: bool) -> None:
    async with context.connect() as connection:
        traces, searched = await _find(connection, wanted, limit)
    listing(context, traces, COLUMNS, _row, noun="traces", empty=EMPTY, filtered=filtered)
    if searched is not None:
        context.output.print(f"Looked through the attributes of {searched} traces.")


async def _find(
    connection: CommandConnection, wanted: dict[str, Any], limit: int
) -> tuple[CommandResults[Trace], int | None]:
    """Return up to `limit` traces, and the number of traces whose attributes were searched."""
    traces: list[Trace] = []
    searched: int | None = None
    cursor = None
    for _ in range(MOST_PAGES):
        size = PAGE_SIZE if wanted.get("attribute") else min(PAGE_SIZE, limit - len(traces))
        page = await connection.traces.list(**wanted, limit=size, cursor=cursor)
        traces += page.items
        cursor = page.next
        if page.searched is not None:
            searched = (searched or 0) + page.searched
        if cursor is None or len(traces) >= limit:
            break
    return CommandResults(traces[:limit], more=cursor is not None or len(traces) > limit), searched


def _row(trace: Trace) -> tuple[Any, ...]:
    return (
        trace.trace_id[:SHOWN_DIGITS],
        shorten(trace.name, LONGEST_NAME),
        ago(trace.start_time),
        span_duration(trace.end_time - trace.start_time),
        trace.spans,
        trace.errors or None,
        trace.input_tokens + trace.output_tokens or None,
    )


@app.client_command("show")
async def show_trace(context: CommandContext, trace_id: IdArgument, limit: LimitOption = 1000) -> None:
    """Show a trace: what its spans count, the spans as a tree, and what models and tools said."""
    async with context.connect() as connection:
        trace = await connection.traces.get(trace_id.replace("-", "").lower())
        spans = await pages(
            lambda limit, cursor: connection.traces.spans(trace.trace_id, limit=limit, cursor=cursor), limit
        )
        messages = (await connection.traces.messages(trace.trace_id)).items
    document = {"trace": trace, "spans": list(spans), "messages": messages}
    rows = (
        ("trace", trace.trace_id),
        ("service", trace.service or None),
        ("rollout", trace.rollout_id),
        ("session", trace.session_id),
        ("started", ago(trace.start_time)),
        ("took", span_duration(trace.end_time - trace.start_time)),
        ("spans", f"{trace.spans}, {trace.errors} failed" if trace.errors else str(trace.spans)),
        ("tokens", tokens_text(trace.input_tokens, trace.output_tokens)),
        ("cost", cost_text(trace.cost)),
        ("reward", None if trace.reward is None else f"{trace.reward:g}"),
    )
    showing(context, document, rows)
    if not context.as_json:
        _draw(context, trace, spans)
        more_hint(context, len(spans), spans.total, "spans")
        print_messages(context, messages)


def _draw(context: CommandContext, trace: Trace, spans: Sequence[Span]) -> None:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(trace.name, style="bold"), guide_style="dim")
    add_spans(tree, spans)
    context.output.print("")
    context.output.console.print(tree)
