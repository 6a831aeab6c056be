"""`perdure span`: the trace of a rollout, drawn as a tree."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.commands.rollouts import IdArgument, find
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption, text
from perdure.cli.shell.output import STYLES, shorten
from perdure.cli.shell.results import more_hint

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from perdure import Attempt, Rollout, Span

EMPTY = "No spans yet. Workers add them, or any OpenTelemetry exporter that sends OTLP to /v1/traces."

app = CommandGroup("Show traces.")


@app.client_command("list")
async def list_spans(
    context: CommandContext,
    rollout_id: IdArgument,
    attempt: Annotated[
        str | None, text("ATTEMPT_ID", "Show this attempt only; `latest` is the newest.", "--attempt")
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
        attempts = [each for each in attempts if each.attempt_id in shown]
    context.output.console.print(trace_tree(rollout, attempts, page.items))
    if not page.total:
        context.output.print(EMPTY)
    more_hint(context, len(page), page.total, "spans")


def trace_tree(rollout: Rollout, attempts: Sequence[Attempt], spans: Sequence[Span]) -> Tree:
    """A rollout with its attempts, and the spans of each below it."""
    from rich.text import Text
    from rich.tree import Tree

    head = Text.assemble((rollout.rollout_id, "bold"), f" {_title(rollout.input)} ", _styled(rollout.status))
    tree = Tree(head, guide_style="dim")
    for attempt in attempts:
        branch = tree.add(_attempt_line(attempt))
        _add_spans(branch, [span for span in spans if span.attempt_id == attempt.attempt_id])
    return tree


def _title(task: Any) -> str:
    """The input of a rollout in a few words."""
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


def _add_spans(tree: Tree, spans: Sequence[Span]) -> None:
    """Add each span below its parent; a span whose parent never arrived is a root."""
    ordered = sorted(spans, key=lambda span: (span.start_time or 0.0, span.sequence_id))
    known = {span.span_id for span in spans}
    children: dict[str | None, list[Span]] = {}
    for span in ordered:
        children.setdefault(span.parent_id if span.parent_id in known else None, []).append(span)
    # Spans in a cycle are below no root: the first of them becomes one.
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

    line = Text(span.name)
    if span.start_time is not None and span.end_time is not None:
        line.append(f"  {span_duration(span.end_time - span.start_time)}", style="cyan")
    tokens = span.attributes.get("gen_ai.usage.output_tokens")
    if tokens is not None:
        line.append(f"  {tokens} tokens", style="dim")
    if span.status.status_code == "ERROR":
        line.append(f"  {span.status.description or 'error'}", style="red")
    return line


def span_duration(seconds: float) -> str:
    """A duration in milliseconds, or in seconds from one second on."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
