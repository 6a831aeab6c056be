"""The soak: a server under a mixed load for a long time. Its memory, descriptors, threads and log stay flat.

The load and the sampler are in this process, the server is a process of its own. Every sample is a line of a
CSV file. The verdict compares the end of the soak with its middle, because caches fill at its beginning.
"""

import asyncio
import csv
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from tests.chaos.long_runs import chosen_size
from tests.chaos.scenario import Run
from tests.chaos.soak_load import SoakLoad

from perdure.testing.serving import ServerProcess

PROJECT = Path(__file__).parent / "soak_project"
MINUTES = 90
SAMPLE_SECONDS = 15.0
MB = 1 << 20
LATE, MIDDLE = (5 / 6, 1.0), (1 / 2, 2 / 3)
"""The parts of the soak that are compared: of 90 minutes the last 15, and minutes 45 to 60."""
GROWTH_MB = 2.0
"""How much more memory the server may have at the end than in the middle."""
MORE_DESCRIPTORS = 3
MORE_THREADS = 1
MORE_WAL_MB = 4.0
FAILED_SHARE = 0.02
"""The share of calls that may fail; more would mean that the load was not what it should be."""
CURVE_LINES = 30
CURVE_WIDTH = 50
CSV_VARIABLE = "PERDURE_SOAK_CSV"
RATE_VARIABLE = "PERDURE_SOAK_RATE"
"""A percentage: 400 is four times the rate."""


@dataclass(frozen=True)
class Sample:
    """What a server had at one moment."""

    seconds: float
    rss_mb: float
    pss_mb: float
    anonymous_mb: float
    descriptors: int
    threads: int
    wal_mb: float
    database_mb: float
    cpu_seconds: float
    calls: int
    failed: int


def take_sample(pid: int, database: Path, seconds: float, load: SoakLoad) -> Sample:
    """Read a server's figures from /proc and the sizes of its files."""
    process = Path("/proc", str(pid))
    rollup = {
        name: int(rest.split()[0]) / 1024
        for name, _, rest in (
            line.partition(":") for line in (process / "smaps_rollup").read_text().splitlines()
        )
        if rest.endswith("kB")
    }
    numbers = (process / "stat").read_text().rpartition(")")[2].split()
    return Sample(
        seconds=round(seconds, 1),
        rss_mb=round(rollup["Rss"], 2),
        pss_mb=round(rollup["Pss"], 2),
        anonymous_mb=round(rollup["Anonymous"], 2),
        descriptors=len(os.listdir(process / "fd")),
        threads=len(os.listdir(process / "task")),
        wal_mb=round(_size_of(database.with_name(database.name + "-wal")) / MB, 2),
        database_mb=round(_size_of(database) / MB, 2),
        cpu_seconds=(int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK"),
        calls=load.done.total(),
        failed=load.failed.total(),
    )


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def check_samples(samples: Sequence[Sample], minutes: float) -> list[str]:
    """Return what grew between the middle of a soak and its end."""
    late, middle = (
        [sample for sample in samples if low <= sample.seconds / (60 * minutes) <= high]
        for low, high in (LATE, MIDDLE)
    )
    if not late or not middle:
        return [f"{len(samples)} samples in {minutes:g} minutes are too few to compare"]
    compared: tuple[tuple[str, str, Callable[[Sequence[float]], float], float], ...] = (
        ("rss_mb", "MB of resident memory", median, GROWTH_MB),
        ("descriptors", "descriptors", median, MORE_DESCRIPTORS),
        ("threads", "threads", median, MORE_THREADS),
        ("wal_mb", "MB of write-ahead log", max, MORE_WAL_MB),
    )
    violations = []
    for name, words, measure, more in compared:
        before = measure([float(getattr(sample, name)) for sample in middle])
        after = measure([float(getattr(sample, name)) for sample in late])
        if after > before + more:
            violations.append(f"{words} rose from {before:g} in the middle to {after:g} at the end")
    return violations


def draw_curve(samples: Sequence[Sample]) -> str:
    """Return lines with a bar for the resident memory, beside the other figures."""
    step = max(len(samples) // CURVE_LINES, 1)
    shown = [samples[min(place + step, len(samples)) - 1] for place in range(0, len(samples), step)]
    low, high = min(sample.rss_mb for sample in shown), max(sample.rss_mb for sample in shown)
    lines = [f"minute    RSS    PSS descriptors threads    WAL     CPU   (the bar: RSS above {low:.0f} MB)"]
    for sample in shown:
        bar = "#" * round(CURVE_WIDTH * (sample.rss_mb - low) / max(high - low, GROWTH_MB))
        lines.append(
            f"{sample.seconds / 60:6.1f} {sample.rss_mb:6.1f} {sample.pss_mb:6.1f} {sample.descriptors:11}"
            f" {sample.threads:7} {sample.wal_mb:6.1f} {sample.cpu_seconds:7.1f}   {bar}"
        )
    return "\n".join(lines)


class Soak:
    """A server, its load, and the samples."""

    _rows: Any

    def __init__(self, run: Run) -> None:
        self._run = run
        self.database = run.folder / "soak.db"
        self.server = ServerProcess(
            [
                *(sys.executable, "-m", "perdure.cli", "serve", "--log-level", "error"),
                *("--database", f"sqlite:///{self.database}"),
            ],
            folder=PROJECT,
            environment={**os.environ, "PERDURE_STATE_DIR": str(run.folder / "state")},
        )
        self._samples: list[Sample] = []

    def perform(self) -> None:
        path = Path(os.environ.get(CSV_VARIABLE) or self._run.folder / "soak.csv")
        with self.server, path.open("w", newline="", buffering=1) as file:
            self._rows = csv.writer(file)
            self._rows.writerow([field.name for field in fields(Sample)])
            asyncio.run(self._soak())
            if self.server.running:
                self.server.stop()
        self._report()

    async def _soak(self) -> None:
        rate = chosen_size(RATE_VARIABLE, 100) / 100
        load, stop = SoakLoad(self.server.url, self._run.seed, rate), asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run(stop))
                group.create_task(self._sample(load, stop))
        finally:
            await load.close()
        self._run.facts.update(load.done)
        self._run.facts.update({f"{name} failed": count for name, count in load.failed.items()})
        calls, failed = load.done.total(), load.failed.total()
        if failed > FAILED_SHARE * calls or not calls:
            self._run.found("the load", [f"{failed} of {calls + failed} calls failed: {load.errors}"])

    async def _sample(self, load: SoakLoad, stop: asyncio.Event) -> None:
        """Take a sample every 15 seconds until the time is over or the server has ended."""
        started = time.monotonic()
        for number in range(1, round(self._run.size * 60 / SAMPLE_SECONDS) + 1):
            await asyncio.sleep(max(started + number * SAMPLE_SECONDS - time.monotonic(), 0))
            if not self.server.running:
                self._run.found("the server", [f"it ended: {self.server.log()}"])
                break
            sample = take_sample(self.server.pid, self.database, time.monotonic() - started, load)
            self._samples.append(sample)
            self._rows.writerow(astuple(sample))
            if number % round(60 / SAMPLE_SECONDS) == 0:
                self._run.advance(f"{sample.rss_mb:.1f} MB")
        stop.set()

    def _report(self) -> None:
        if self._samples:
            print(draw_curve(self._samples), file=sys.stderr, flush=True)
        self._run.found("at the end", check_samples(self._samples, self._run.size))


def soak_on_sqlite(run: Run) -> None:
    """Soak a server on a SQLite file."""
    Soak(run).perform()
