"""`perdure rollout watch`: prints changes. The server's feed is only a hint; the rollouts are read."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from perdure import AttemptedRollout, Rollout, is_finished
from perdure.cli.shell.output import STYLES, TIMED_OUT, Output, print_error, warn
from perdure.cli.shell.target import CommandConnection, hints
from perdure.kernel.errors import NotFound, Unreachable
from perdure.rollouts.records import ROLLOUT_STATUSES, RolloutStatus

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

MAX_WATCHED = 1000
"""Maximum unfinished rollouts that are watched at once."""

UNFINISHED: tuple[RolloutStatus, ...] = tuple(
    status for status in ROLLOUT_STATUSES if status not in ("succeeded", "failed", "cancelled")
)


@dataclass(frozen=True)
class StatusChange:
    """The new status of a rollout."""

    time: float
    rollout_id: str
    status: str
    attempt: int | None
    worker_id: str | None


def build_status_change(rollout: Rollout, now: float) -> StatusChange:
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    return StatusChange(
        round(now, 3),
        rollout.rollout_id,
        rollout.status,
        attempt.sequence_id if attempt else None,
        attempt.worker_id if attempt else None,
    )


class RolloutWatch:
    """The watched rollouts: given ones, or all unfinished ones."""

    def __init__(self, connection: CommandConnection, rollout_ids: Sequence[str] = ()) -> None:
        self._connection = connection
        self._ids = tuple(dict.fromkeys(rollout_ids))
        self._known: dict[str, Rollout] = {}

    @property
    def total(self) -> int:
        return len(self._known)

    @property
    def ended(self) -> int:
        return sum(map(is_finished, self._known.values()))

    @property
    def is_over(self) -> bool:
        return self.ended == self.total

    def counts(self) -> dict[str, int]:
        """Count rollouts by status."""
        return dict(sorted(Counter(rollout.status for rollout in self._known.values()).items()))

    async def changes(self) -> list[StatusChange]:
        """Return the changes since the last call."""
        now = time.time()
        changed = [rollout for rollout in await self._read() if self._is_new(rollout)]
        self._known.update((rollout.rollout_id, rollout) for rollout in changed)
        return [build_status_change(rollout, now) for rollout in changed]

    def _is_new(self, rollout: Rollout) -> bool:
        previous = self._known.get(rollout.rollout_id)
        return previous is None or build_status_change(previous, 0) != build_status_change(rollout, 0)

    async def _read(self) -> Iterable[Rollout]:
        store = self._connection.store
        if self._ids:
            rollouts = await store.query_rollouts(rollout_id_in=self._ids, sort_by="start_time")
            missing = set(self._ids) - {rollout.rollout_id for rollout in rollouts}
            if missing:
                raise NotFound(f"rollout {min(missing)} not found")
            return rollouts
        live = await store.query_rollouts(status_in=UNFINISHED, sort_by="start_time", limit=MAX_WATCHED)
        seen = {rollout.rollout_id for rollout in live}
        gone = [id for id, last in self._known.items() if id not in seen and not is_finished(last)]
        ended = await store.query_rollouts(rollout_id_in=gone, sort_by="start_time") if gone else ()
        return (*ended, *live)


class Printer:
    """Prints changes as JSON lines or text lines, on a terminal with a progress bar below them."""

    def __init__(self, output: Output, watching: RolloutWatch) -> None:
        self._output = output
        self._watching = watching
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self._output.console.is_terminal and not self._output.as_json:
            self._bar = _bar(self._output)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def print(self, changes: Iterable[StatusChange]) -> None:
        for change in changes:
            if self._output.as_json:
                self._output.line(asdict(change))
            else:
                self._output.console.print(_line(change), soft_wrap=True)
        if self._bar is not None:
            counts = ", ".join(f"{name} {count}" for name, count in self._watching.counts().items())
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=self._watching.ended, total=self._watching.total, counts=counts)


def _bar(output: Output) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[counts]}"), TimeElapsedColumn())
    bar = Progress(*columns, console=output.console, transient=True)
    bar.add_task("rollouts", total=None, counts="")
    return bar


def _line(change: StatusChange) -> Text:
    from rich.text import Text

    clock = time.strftime("%H:%M:%S", time.localtime(change.time))
    status = (f"{change.status:<10}", STYLES.get(change.status, "bold"))
    attempt = f" attempt {change.attempt}" if change.attempt else ""
    by = f" by {change.worker_id}" if change.worker_id else ""
    return Text.assemble((clock, "dim"), f"  {change.rollout_id}  ", status, f"{attempt}{by}")


async def watch(
    connection: CommandConnection,
    output: Output,
    rollout_ids: Sequence[str] = (),
    *,
    follow: bool = False,
    timeout: float | None = None,
) -> int:
    """Print every change until all rollouts have ended, or until Ctrl-C. Return the exit code."""
    watching = RolloutWatch(connection, rollout_ids)
    try:
        async with asyncio.timeout(timeout):
            with Printer(output, watching) as printer:
                await _follow(connection, watching, printer, follow=follow)
    except TimeoutError:
        left = watching.total - watching.ended
        print_error(
            "timed_out", f"{left} of {watching.total} rollouts did not end within {timeout:g} s", TIMED_OUT
        )
        return TIMED_OUT
    return 0


async def _follow(
    connection: CommandConnection, watching: RolloutWatch, printer: Printer, *, follow: bool
) -> None:
    async with hints(connection, ("rollout", "attempt")) as hint:
        while True:
            try:
                printer.print(await watching.changes())
            except Unreachable as error:
                if not follow or not watching.total:
                    raise
                warn(f"{error.code}: {error.message}; retrying")
            if watching.is_over and not follow:
                return
            await hint.wait()
