"""The demo: a store, two workers, their progress on a terminal or in plain lines, and a report.

Its rollouts are stored as events of memory, which is searched once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import quote, urlsplit

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perdure import Attempt, EnqueueRolloutRequest, LightningStore, Rollout, Span, open_store
from perdure.cli.commands.spans import trace_tree
from perdure.cli.demo.agents import CONFIG, QUEUE, WORKERS, DemoPlan, DemoWorker, pause
from perdure.cli.shell.output import STYLES, make_console, print_json
from perdure.jobs.model import JobContext
from perdure.kernel.config import Settings
from perdure.kernel.ids import derived_ulid
from perdure.kernel.storage.port import Storage
from perdure.memory.records import NewMemoryEvent, SearchHit
from perdure.memory.service import REBUILD_JOB, Memory
from perdure.memory.wiring import MemoryWork

# --- memory -----------------------------------------------------------------------------------------------


QUESTION = "what did the agents do today"
SHOWN = 3


class DemoWork(NamedTuple):
    """A rollout of the demo with its attempts."""

    rollout: Rollout
    attempts: Sequence[Attempt]


async def recall(storage: Storage, namespace: str, works: Sequence[DemoWork]) -> list[SearchHit]:
    """Store the questions and results, summarize them, and search for today's work of the agents."""
    memory = Memory(storage, namespace=namespace)
    events = [event for work in works for event in _events(work)]
    for start in range(0, len(events), 500):
        await memory.ingest_many(events[start : start + 500])
    job = JobContext(
        storage=storage,
        ns=await memory.ns("write"),
        namespace=namespace,
        job_id="demo",
        name=REBUILD_JOB,
        key=None,
        attempt=1,
    )
    await MemoryWork(storage, Settings()).jobs.rebuild(job, {})
    return (await memory.search(QUESTION, kind="event", limit=SHOWN)).items


def _events(work: DemoWork) -> list[NewMemoryEvent]:
    rollout, attempts = work
    asked, ended = int(rollout.start_time * 1000), int((rollout.end_time or rollout.start_time) * 1000)
    question = str(dict(rollout.input).get("question", rollout.input))
    worker = next((attempt.worker_id for attempt in reversed(attempts) if attempt.worker_id), "a worker")
    many = f"{len(attempts)} attempts" if len(attempts) != 1 else "1 attempt"
    became = "answered" if rollout.status == "succeeded" else "could not answer"
    lines = (
        ("user", asked, question),
        ("assistant", ended, f"The agent of {worker} {became} {question!r} after {many}: {rollout.status}."),
    )
    return [
        NewMemoryEvent(
            event_id=derived_ulid(time, rollout.rollout_id, role),
            session_id=rollout.rollout_id,
            timestamp_ms=time,
            event_type="user_message" if role == "user" else "assistant_message",
            role="user" if role == "user" else "assistant",
            text=text,
            agent=worker if role == "assistant" else None,
        )
        for role, time, text in lines
    ]


def answer_lines(hits: Sequence[SearchHit]) -> list[str]:
    """Format the answer of memory, each line with its events."""
    lines = ["", f"Memory, asked {QUESTION!r}:"]
    for hit in hits:
        lines += [f"  - {hit.text}", f"    events: {', '.join(event.event_id for event in hit.events[:2])}"]
    return lines


# --- display ----------------------------------------------------------------------------------------------


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


# --- the demo ---------------------------------------------------------------------------------------------


WATCHDOG_SECONDS = 0.2
EVENTS_SHOWN = 5
REMEMBERED = 100
"""Number of rollouts that the demo stores in memory."""


@dataclass(frozen=True)
class DemoDatabase:
    """Database and namespace of the demo."""

    url: str
    namespace: str
    path: Path | None

    @property
    def shown_url(self) -> str:
        """The URL without secrets."""
        if not self.url.startswith("postgres"):
            return self.url
        parts = urlsplit(self.url)
        who, at, where = parts.netloc.rpartition("@")
        user, colon, _ = who.partition(":")
        return parts._replace(netloc=f"{user}{':***' if colon else ''}{at}{where}", query="").geturl()

    @property
    def in_memory(self) -> bool:
        return self.url.startswith(("memory:", ":memory:"))


@dataclass(frozen=True)
class DemoReport:
    """The result of the demo, read from the store; `added` is the change of the statistics."""

    progress: DemoProgress
    added: dict[str, int]
    statistics: dict[str, Any]
    rollout: Rollout
    attempts: list[Attempt]
    spans: list[Span]
    works: list[DemoWork]
    """The first rollouts with their attempts, for memory."""
    recalled: list[SearchHit] = field(default_factory=list)
    """The search results of memory, if it was searched."""


def run(database: str | None, rollouts: int, seed: int, *, as_json: bool, no_color: bool) -> None:
    """Run the demo and print its report."""
    place = _place(database)
    plan = DemoPlan(rollouts, seed)
    console = make_console(no_color=no_color, quiet=as_json)
    with _without_warnings(), _stopped_cleanly(console, place):
        report = asyncio.run(_play_in(place, plan, console))
    if as_json:
        where = {"database": place.shown_url, "namespace": place.namespace}
        print_json({**where, **report_document(plan, report)})
        return
    print_report(console, report)
    for line in _next_steps(place):
        console.print(line, markup=False, soft_wrap=True)


def _place(database: str | None) -> DemoDatabase:
    """Return a new file, or the given database with a namespace for the demo."""
    if database is not None:
        return DemoDatabase(database, f"demo-{secrets.token_hex(3)}", None)
    path = Path(tempfile.mkdtemp(prefix="perdure-demo-")) / "demo.db"
    return DemoDatabase(f"sqlite:///{quote(path.as_posix())}", "default", path)


def _screen(console: Console) -> Screen:
    live = console.is_terminal and not console.is_dumb_terminal and not console.quiet
    return LiveScreen(console) if live else PlainScreen(console)


@contextmanager
def _stopped_cleanly(console: Console, place: DemoDatabase) -> Iterator[None]:
    """Print the location of the data at Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        kept = "" if place.in_memory else f" The data is in {place.path or place.shown_url}"
        console.print(f"\nStopped.{kept}", soft_wrap=True)
        raise


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Log only errors, because other log lines would break the table or the JSON."""
    log, handler = logging.getLogger("perdure"), logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


async def _play_in(place: DemoDatabase, plan: DemoPlan, console: Console) -> DemoReport:
    store = open_store(place.url, namespace=place.namespace, watchdog_interval=WATCHDOG_SECONDS)
    async with store:
        report = await play(store, plan, console)
        return replace(report, recalled=await recall(store.storage, place.namespace, report.works))


async def play(store: LightningStore, plan: DemoPlan, console: Console) -> DemoReport:
    """Run the agents on any store, and show their progress."""
    screen = _screen(console)
    demo = Demo(store, plan, screen)
    with screen:
        await demo.play()
    return await demo.report()


class Demo:
    """The rollouts, the workers that run them, and the screen."""

    def __init__(self, store: LightningStore, plan: DemoPlan, screen: Screen) -> None:
        self._store = store
        self._plan = plan
        self._screen = screen
        self._started = time.monotonic()
        self._events: deque[DemoEvent] = deque(maxlen=EVENTS_SHOWN)
        self._ended = asyncio.Event()
        self._workers = [DemoWorker(store, worker_id, plan, self._say, self._ended) for worker_id in WORKERS]
        self._ids: list[str] = []
        self._before: Mapping[str, Any] = {}

    def _say(self, text: str) -> None:
        event = DemoEvent(time.monotonic() - self._started, text)
        self._events.append(event)
        self._screen.say(event)

    async def play(self) -> None:
        """Enqueue the rollouts and run the workers until all have ended."""
        self._before = dict(await self._store.statistics())
        await self._enqueue()
        try:
            await self._work()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        self._screen.show(await self._progress())

    async def _enqueue(self) -> None:
        requests = [
            EnqueueRolloutRequest(input=input, config=CONFIG, queue=QUEUE) for input in self._plan.inputs()
        ]
        rollouts = await self._store.enqueue_many_rollouts(requests)
        self._ids = [rollout.rollout_id for rollout in rollouts]
        self._say(f"enqueued {len(rollouts)} rollouts, with up to {CONFIG.max_attempts} attempts each")

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for worker in self._workers:
                group.create_task(worker.work())
            group.create_task(self._watch())
            await self._store.wait_for_rollouts(rollout_ids=self._ids)
            self._ended.set()

    async def _watch(self) -> None:
        while not self._ended.is_set():
            self._screen.show(await self._progress())
            await pause(self._ended, self._screen.seconds)

    async def _progress(self) -> DemoProgress:
        running = await self._count("preparing", "running")
        succeeded, failed = await self._count("succeeded"), await self._count("failed")
        return DemoProgress(
            total=len(self._ids),
            queued=max(0, len(self._ids) - running - succeeded - failed),
            running=running,
            succeeded=succeeded,
            failed=failed,
            retries=sum(worker.tally.retries for worker in self._workers),
            seconds=time.monotonic() - self._started,
            workers=await self._worker_lines(),
            events=tuple(self._events),
        )

    async def _count(self, *statuses: Any) -> int:
        ours = await self._store.query_rollouts(status_in=statuses, rollout_id_in=self._ids, limit=1)
        return ours.counted

    async def _worker_lines(self) -> tuple[WorkerLine, ...]:
        workers = {worker.worker_id: worker for worker in await self._store.query_workers()}
        return tuple(
            WorkerLine(
                worker.worker_id, *_worker_state(workers.get(worker.worker_id)), **asdict(worker.tally)
            )
            for worker in self._workers
        )

    async def report(self) -> DemoReport:
        """Read the result from the store, with the trace of the rollout that lost its heartbeats."""
        silent = self._ids[self._plan.rollouts // 4]
        rollout = await self._store.get_rollout_by_id(silent)
        assert rollout is not None
        attempts = list(await self._store.query_attempts(silent))
        spans = list(await self._store.query_spans(silent))
        statistics = dict(await self._store.statistics())
        return DemoReport(
            await self._progress(),
            self._added(statistics),
            statistics,
            rollout,
            attempts,
            spans,
            await self._works(),
        )

    async def _works(self) -> list[DemoWork]:
        rollouts = await self._store.query_rollouts(rollout_id_in=self._ids[:REMEMBERED])
        return [
            DemoWork(rollout, list(await self._store.query_attempts(rollout.rollout_id)))
            for rollout in rollouts
        ]

    def _added(self, statistics: Mapping[str, Any]) -> dict[str, int]:
        names = ("total_attempts", "total_spans")
        return {name: statistics[name] - self._before.get(name, 0) for name in names}


def _worker_state(worker: Any) -> tuple[str, str | None]:
    return ("unknown", None) if worker is None else (worker.status, worker.current_rollout_id)


def report_document(plan: DemoPlan, report: DemoReport) -> dict[str, Any]:
    """Build the report as JSON."""
    progress = asdict(report.progress)
    return {
        "seed": plan.seed,
        "seconds": round(progress["seconds"], 3),
        "rollouts": {key: progress[key] for key in ("total", "succeeded", "failed", "retries")},
        "workers": progress["workers"],
        "statistics": report.statistics,
        "trace": {
            "rollout": report.rollout.model_dump(mode="json"),
            "attempts": [attempt.model_dump(mode="json") for attempt in report.attempts],
            "spans": [span.model_dump(mode="json") for span in report.spans],
        },
        "memory": {"query": QUESTION, "items": [hit.model_dump(mode="json") for hit in report.recalled]},
    }


def print_report(console: Console, report: DemoReport) -> None:
    """Print the report as text."""
    console.print(summary(report.progress, report.added), soft_wrap=not console.is_terminal)
    console.print(trace_tree(report.rollout, report.attempts, report.spans))
    if report.recalled:
        console.print("\n".join(answer_lines(report.recalled)), markup=False, soft_wrap=True)


def _next_steps(place: DemoDatabase) -> tuple[str, str]:
    if place.in_memory:
        return (
            "\nThe database was in memory and is gone. Use --database sqlite:///demo.db to keep it.",
            'From Python:  store = perdure.open_store("sqlite:///demo.db")',
        )
    namespace = "" if place.namespace == "default" else f', namespace="{place.namespace}"'
    return (
        f"\nThe data is in {place.path or place.shown_url}",
        f'From Python:  store = perdure.open_store("{place.shown_url}"{namespace})',
    )
