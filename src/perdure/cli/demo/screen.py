"""Display of the demo: its progress on a terminal or in plain lines, and a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perdure.cli.shell.output import STYLES

TITLE = "perdure demo: a queue, two workers that fail sometimes, and a watchdog"


@dataclass(frozen=True)
class DemoEvent:
    """An event, with the seconds since the start."""

    seconds: float
    text: str


@dataclass(frozen=True)
class WorkerLine:
    """A worker: its status and rollout in the store, and how its attempts ended."""

    worker_id: str
    status: str
    rollout_id: str | None
    succeeded: int
    failed: int
    silent: int
    retries: int


@dataclass(frozen=True)
class DemoProgress:
    """The progress of the demo."""

    total: int
    queued: int
    running: int
    succeeded: int
    failed: int
    retries: int
    seconds: float
    workers: tuple[WorkerLine, ...]
    events: tuple[DemoEvent, ...]

    def counts(self) -> dict[str, int]:
        names = ("queued", "running", "succeeded", "failed", "retries")
        return {name: getattr(self, name) for name in names}


class Screen(Protocol):
    """Shows the demo; `seconds` is the interval between updates."""

    seconds: float

    def say(self, event: DemoEvent) -> None: ...
    def show(self, progress: DemoProgress) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LiveScreen:
    """A table that is redrawn in place."""

    seconds = 0.1

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def say(self, event: DemoEvent) -> None:
        """Do nothing; the table shows the last events."""

    def show(self, progress: DemoProgress) -> None:
        self._live.update(progress_view(progress), refresh=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)


class PlainScreen:
    """A line for every event, and one line of counts a second."""

    seconds = 1.0

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, event: DemoEvent) -> None:
        self._line(event.seconds, event.text)

    def show(self, progress: DemoProgress) -> None:
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
        """Do nothing; there is nothing to restore."""


def progress_view(progress: DemoProgress) -> RenderableType:
    """Build the live table."""
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


def _counts(progress: DemoProgress) -> Text:
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


def summary(progress: DemoProgress, statistics: Mapping[str, Any]) -> Text:
    """Build the summary at the end."""
    text = Text("\n")
    text.append(f"{progress.succeeded} of {progress.total} rollouts succeeded", style="bold green")
    if progress.failed:
        text.append(f", {progress.failed} failed for good", style="red")
    attempts, spans = statistics["total_attempts"], statistics["total_spans"]
    text.append(f"; {attempts} attempts, {progress.retries} of them retries, and {spans} spans were stored")
    return text.append(f" in {progress.seconds:.1f} s.\n")
