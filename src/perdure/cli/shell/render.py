"""What is drawn: the demo's progress on a terminal or in plain lines, its end, and a trace as a tree."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from perdure import Attempt, Rollout, Span
from perdure.cli.shell.output import shorten

TITLE = "perdure demo: a queue, two workers that fail sometimes, and a watchdog"
STYLES = {
    "queued": "cyan",
    "queuing": "cyan",
    "requeuing": "cyan",
    "preparing": "yellow",
    "cancelled": "dim",
    "running": "yellow",
    "succeeded": "green",
    "failed": "red",
    "unresponsive": "magenta",
    "timeout": "magenta",
    "idle": "dim",
    "busy": "yellow",
    "unknown": "magenta",
    "pending": "cyan",
    "success": "green",
    "error": "red",
    "interrupted": "magenta",
    "rollback": "magenta",
    "delivered": "green",
    "dead": "red",
}


@dataclass(frozen=True)
class Event:
    """Something worth telling, and the second at which it happened."""

    seconds: float
    text: str


@dataclass(frozen=True)
class WorkerLine:
    """A worker: its status and rollout as the store knows them, and how its attempts ended."""

    worker_id: str
    status: str
    rollout_id: str | None
    succeeded: int
    failed: int
    silent: int
    retries: int


@dataclass(frozen=True)
class Progress:
    """How far the demo is."""

    total: int
    queued: int
    running: int
    succeeded: int
    failed: int
    retries: int
    seconds: float
    workers: tuple[WorkerLine, ...]
    events: tuple[Event, ...]

    def counts(self) -> dict[str, int]:
        names = ("queued", "running", "succeeded", "failed", "retries")
        return {name: getattr(self, name) for name in names}


class Screen(Protocol):
    """Where the demo is watched; `seconds` is how often it wants to be shown."""

    seconds: float

    def say(self, event: Event) -> None: ...
    def show(self, progress: Progress) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LiveScreen:
    """A table that is drawn over and over in its place."""

    seconds = 0.1

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def say(self, event: Event) -> None:
        """Shown with the table, which holds the last events."""

    def show(self, progress: Progress) -> None:
        self._live.update(progress_view(progress), refresh=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)


class PlainScreen:
    """A line for every event, and one a second for the counts."""

    seconds = 1.0

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, event: Event) -> None:
        self._line(event.seconds, event.text)

    def show(self, progress: Progress) -> None:
        counts = ", ".join(f"{name} {count}" for name, count in progress.counts().items())
        self._line(progress.seconds, counts)

    def _line(self, seconds: float, text: str) -> None:
        self._console.print(f"{seconds:5.1f} s  {text}", markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._console.print(TITLE, soft_wrap=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to restore."""


def duration(seconds: float) -> str:
    """A duration in the unit that suits it."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def progress_view(progress: Progress) -> RenderableType:
    """The whole live picture."""
    return Group(
        Text(TITLE, style="bold"),
        Text(),
        _counts(progress),
        ProgressBar(progress.total, progress.succeeded + progress.failed, width=64),
        Text("\n"),
        _worker_table(progress.workers),
        Text(),
        *(Text(f"{event.seconds:5.1f} s  {event.text}", style="dim") for event in progress.events),
    )


def _counts(progress: Progress) -> Text:
    text = Text()
    for name, count in progress.counts().items():
        text.append(f"{name} ", style="dim").append(f"{count:<4}", style=STYLES.get(name, "bold"))
    return text.append(f"{progress.seconds:6.1f} s", style="dim")


def _worker_table(workers: Sequence[WorkerLine]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name, width in (("worker", 8), ("status", 8), ("rollout", 15)):
        table.add_column(name, min_width=width)
    for name in ("succeeded", "failed", "silent", "retries"):
        table.add_column(name, justify="right")
    for worker in workers:
        ended = (worker.succeeded, worker.failed, worker.silent, worker.retries)
        status = Text(worker.status, style=STYLES[worker.status])
        table.add_row(worker.worker_id, status, worker.rollout_id or "-", *map(str, ended))
    return table


def summary(progress: Progress, statistics: Mapping[str, Any]) -> Text:
    """The end in a few words."""
    text = Text("\n")
    text.append(f"{progress.succeeded} of {progress.total} rollouts succeeded", style="bold green")
    if progress.failed:
        text.append(f", {progress.failed} failed for good", style="red")
    attempts, spans = statistics["total_attempts"], statistics["total_spans"]
    text.append(f"; {attempts} attempts, {progress.retries} of them retries, and {spans} spans were stored")
    return text.append(f" in {progress.seconds:.1f} s.\n")


def trace_tree(rollout: Rollout, attempts: Sequence[Attempt], spans: Sequence[Span]) -> Tree:
    """A rollout with its attempts, and the spans of each below it."""
    head = Text.assemble((rollout.rollout_id, "bold"), f" {_asked(rollout.input)} ", _styled(rollout.status))
    tree = Tree(head, guide_style="dim")
    for attempt in attempts:
        branch = tree.add(_attempt_line(attempt))
        _add_spans(branch, [span for span in spans if span.attempt_id == attempt.attempt_id])
    return tree


def _asked(task: Any) -> str:
    """What a rollout is about, in a few words."""
    question = task.get("question") if isinstance(task, Mapping) else None
    return f"asked: {shorten(question)}" if isinstance(question, str) else shorten(task)


def _styled(status: str) -> tuple[str, str]:
    return (status, STYLES.get(status, "bold"))


def _attempt_line(attempt: Attempt) -> Text:
    ended = attempt.end_time or attempt.last_heartbeat_time or attempt.start_time
    took = duration(ended - attempt.start_time)
    word = "in" if attempt.end_time else "last heard of after"
    title = (f"attempt {attempt.sequence_id}", "bold")
    by = f" by {attempt.worker_id}" if attempt.worker_id else ""
    return Text.assemble(title, f"{by}: ", _styled(attempt.status), f", {word} {took}")


def _add_spans(tree: Tree, spans: Sequence[Span]) -> None:
    """Below each span its children; one whose parent never arrived stands by itself."""
    ordered = sorted(spans, key=lambda span: (span.start_time or 0.0, span.sequence_id))
    known = {span.span_id for span in spans}
    children: dict[str | None, list[Span]] = {}
    for span in ordered:
        children.setdefault(span.parent_id if span.parent_id in known else None, []).append(span)
    # Spans that are each other's parents are below no root, and begin one where they begin.
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
    text = Text(span.name)
    if span.start_time is not None and span.end_time is not None:
        text.append(f"  {duration(span.end_time - span.start_time)}", style="cyan")
    tokens = span.attributes.get("gen_ai.usage.output_tokens")
    if tokens is not None:
        text.append(f"  {tokens} tokens", style="dim")
    if span.status.status_code == "ERROR":
        text.append(f"  {span.status.description or 'error'}", style="red")
    return text
