"""`perdure span`: the spans of a rollout, drawn as a tree, and one span with all its details."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.commands.rollouts import IdArgument, attempt_ids, find
from perdure.cli.shell.ids import ROLLOUTS, id_argument, part_argument, part_option
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption
from perdure.cli.shell.output import STYLES, ago, shorten, tokens_text
from perdure.cli.shell.results import more_hint, pages, showing
from perdure.cli.shell.target import CommandConnection

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from perdure import Attempt, Rollout, Span
    from perdure.spans.records import Event
    from perdure.traces.messages import SpanMessage

EMPTY = "No spans yet. Workers add them, or any OpenTelemetry exporter that sends OTLP to /v1/traces."

SHOWN_DIGITS = 8
SPAN_DIGITS = 16
MOST_SPANS = 10_000
"""Maximum spans that are searched for one span."""
LONGEST_ATTRIBUTE = 2000

app = CommandGroup("Show spans.")


async def span_ids(connection: CommandConnection, given: Mapping[str, Any], start: str) -> list[str]:
    """List the spans of a rollout or trace, latest start first."""
    if len(start) == SPAN_DIGITS:
        return [start]
    spans = await _spans_like(connection, given["id"], start)
    newest_first = sorted(spans, key=lambda span: span.start_time or 0.0, reverse=True)
    return list(dict.fromkeys(span.span_id for span in newest_first))


@app.client_command("list")
async def list_spans(
    context: CommandContext,
    rollout_id: IdArgument,
    attempt: Annotated[
        str | None,
        part_option(
            "ATTEMPT_ID", "Show this attempt only; `last` is the newest.", "--attempt", among=attempt_ids
        ),
    ] = None,
    limit: LimitOption = 1000,
) -> None:
    """Show the trace of a rollout as a tree, with the duration of each span."""
    async with context.connect() as connection:
        store = connection.store
        rollout = await find(store, rollout_id)
        attempts = list(await store.query_attempts(rollout_id))
        page = await store.query_spans(rollout_id, attempt, limit=limit)
    if context.as_json:
        context.output.document({"items": page.items, "total": page.total})
        return
    if attempt is not None:
        shown = {span.attempt_id for span in page} | {attempt}
        attempts = [attempt for attempt in attempts if attempt.attempt_id in shown]
    context.output.console.print(trace_tree(rollout, attempts, page.items))
    if not page.total:
        context.output.print(EMPTY)
    more_hint(context, len(page), page.total, "spans")


@app.client_command("show")
async def show_span(
    context: CommandContext,
    id: Annotated[str, id_argument("ID", *ROLLOUTS, "trace", help="ID of the rollout, run or trace.")],
    span_id: Annotated[
        str, part_argument("SPAN_ID", "ID of the span, its first digits, or `last`.", span_ids)
    ],
) -> None:
    """Show a span with its attributes, events and exceptions."""
    from perdure.spans.figures import count_figures
    from perdure.traces.messages import messages_of_span

    async with context.connect() as connection:
        span = await _find_span(connection, id, span_id.lower())
    figures = count_figures(span.name, span.attributes)
    rows = (
        ("span", span.span_id),
        ("name", span.name),
        ("status", _status(span)),
        ("kind", span.model_extra.get("kind")),
        ("trace", span.trace_id),
        ("parent", span.parent_id),
        ("rollout", span.rollout_id),
        ("attempt", span.attempt_id),
        ("service", span.resource.attributes.get("service.name")),
        ("started", ago(span.start_time)),
        ("took", _took(span)),
        ("tokens", tokens_text(figures.input_tokens, figures.output_tokens)),
        ("reward", None if figures.reward is None else f"{figures.reward:g}"),
    )
    details = [(name, shorten(value, LONGEST_ATTRIBUTE)) for name, value in sorted(span.attributes.items())]
    messages = messages_of_span(span)
    document = {**span.model_dump(), "messages": messages} if messages else span
    showing(context, document, rows, ("attribute", "value"), details)
    if not context.as_json:
        for event in span.events:
            _print_event(context, span, event)
        print_messages(context, messages)


def print_messages(context: CommandContext, messages: Sequence[SpanMessage]) -> None:
    """Print the prompts, answers and tool results of models."""
    from rich.text import Text

    if not messages:
        return
    context.output.print("")
    for message in messages:
        line = Text(message.role, style="bold")
        if message.name:
            line.append(f" {message.name}", style="dim")
        parts = [shorten(message.text, LONGEST_ATTRIBUTE)] if message.text else []
        parts += [f"{call.name}({shorten(call.arguments, LONGEST_ATTRIBUTE)})" for call in message.calls]
        line.append("  " + "  ".join(parts), style="red" if message.failed else "")
        context.output.console.print(line)


async def _find_span(connection: CommandConnection, id: str, span_id: str) -> Span:
    from perdure.errors import NotFound

    matches = [span for span in await _spans_like(connection, id, span_id) if span.span_id == span_id]
    if not matches:
        raise NotFound(f"{id}: no span has the ID {span_id}")
    return matches[0]


async def _spans_like(connection: CommandConnection, id: str, start: str) -> Sequence[Span]:
    """Return spans of a rollout or a trace, including those whose ids begin with `start`."""
    if await connection.store.get_rollout_by_id(id) is not None:
        page = await connection.store.query_spans(id, span_id_contains=start or None, limit=MOST_SPANS)
        return page.items
    trace_id = id.replace("-", "").lower()
    exact = start if len(start) == SPAN_DIGITS else None
    return await pages(
        lambda limit, cursor: connection.traces.spans(trace_id, span_id=exact, limit=limit, cursor=cursor),
        MOST_SPANS,
    )


def _status(span: Span) -> str:
    status = span.status
    return f"{status.status_code}: {status.description}" if status.description else status.status_code


def _took(span: Span) -> str | None:
    if span.start_time is None or span.end_time is None:
        return None
    return span_duration(span.end_time - span.start_time)


def _print_event(context: CommandContext, span: Span, event: Event) -> None:
    """Print an event with its time and message; the stack trace of an exception stays unchanged."""
    when = ""
    if event.timestamp is not None and span.start_time is not None:
        when = f" after {span_duration(event.timestamp - span.start_time)}"
    kind, message = event.attributes.get("exception.type"), event.attributes.get("exception.message")
    context.output.print("")
    context.output.print(f"{event.name}{when}" + (f": {kind}: {message or ''}" if kind else ""))
    for name, value in sorted(event.attributes.items()):
        if name == "exception.stacktrace":
            context.output.print(str(value).rstrip())
        elif name not in ("exception.type", "exception.message"):
            context.output.print(f"  {name}: {shorten(value, LONGEST_ATTRIBUTE)}")


def trace_tree(rollout: Rollout, attempts: Sequence[Attempt], spans: Sequence[Span]) -> Tree:
    """Build the tree of a rollout with its attempts, and the spans of each."""
    from rich.text import Text
    from rich.tree import Tree

    head = Text.assemble((rollout.rollout_id, "bold"), f" {_title(rollout.input)} ", _styled(rollout.status))
    tree = Tree(head, guide_style="dim")
    for attempt in attempts:
        branch = tree.add(_attempt_line(attempt))
        add_spans(branch, [span for span in spans if span.attempt_id == attempt.attempt_id])
    return tree


def _title(task: Any) -> str:
    """Summarize the input of a rollout in a few words."""
    question = task.get("question") if isinstance(task, Mapping) else None
    return f"question: {shorten(question)}" if isinstance(question, str) else shorten(task)


def _styled(status: str) -> tuple[str, str]:
    return (status, STYLES.get(status, "bold"))


def _attempt_line(attempt: Attempt) -> Text:
    from rich.text import Text

    ended = attempt.end_time or attempt.last_heartbeat_time or attempt.start_time
    took = span_duration(ended - attempt.start_time)
    label = "in" if attempt.end_time else "last heartbeat after"
    title = (f"attempt {attempt.sequence_id}", "bold")
    by = f" by {attempt.worker_id}" if attempt.worker_id else ""
    return Text.assemble(title, f"{by}: ", _styled(attempt.status), f", {label} {took}")


def add_spans(tree: Tree, spans: Sequence[Span]) -> None:
    """Add each span below its parent; a span with an unknown parent becomes a root."""
    ordered = sorted(spans, key=lambda span: (span.start_time or 0.0, span.sequence_id))
    span_ids_here = {span.span_id for span in spans}
    children: dict[str | None, list[Span]] = {}
    for span in ordered:
        children.setdefault(span.parent_id if span.parent_id in span_ids_here else None, []).append(span)
    # Spans in a cycle have no root, so the first of them becomes one.
    placed: set[int] = set()
    for root in (*children.get(None, []), *ordered):
        waiting = deque([(tree, root)])
        while waiting:
            branch, span = waiting.popleft()
            if id(span) not in placed:
                placed.add(id(span))
                below = branch.add(_span_line(span))
                waiting.extend((below, child) for child in children.get(span.span_id, []))


def _span_line(span: Span) -> Text:
    from rich.text import Text

    from perdure.spans.figures import count_figures

    line = Text(span.name)
    if span.start_time is not None and span.end_time is not None:
        line.append(f"  {span_duration(span.end_time - span.start_time)}", style="cyan")
    figures = count_figures(span.name, span.attributes)
    tokens = tokens_text(figures.input_tokens, figures.output_tokens)
    if tokens is not None:
        line.append(f"  {tokens}", style="dim")
    if figures.reward is not None:
        line.append(f"  reward {figures.reward:g}", style="green")
    if span.status.status_code == "ERROR":
        line.append(f"  {shorten(span.status.description or 'error')}", style="red")
    line.append(f"  {span.span_id[:SHOWN_DIGITS]}", style="dim")
    return line


def span_duration(seconds: float) -> str:
    """Format a duration in milliseconds, or in seconds from one second on."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
