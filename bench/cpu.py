"""CPU time of processes: the cost of a unit of work for the server, its clients and the database."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from bench.timing import Side

PROC = Path("/proc")
SETTLE_SECONDS = 0.5
"""Time for a server's work after its answers, which also counts."""

Clock = Callable[[], float]


def seconds_of(pid: int) -> float:
    """Return the CPU time of a process, in user and system mode."""
    return _seconds(_stat(pid)[11:13])


def seconds_of_tree(pid: int) -> float:
    """Return the CPU time of a process and its running and ended children."""
    known = {each: fields for each in _pids() if (fields := _stat_if_there(each))}
    wanted = [pid]
    for each in wanted:
        wanted += [child for child, fields in known.items() if int(fields[1]) == each]
    return sum(_seconds(known[each][11:15]) for each in wanted if each in known)


def parent_of(pid: int) -> int | None:
    """Return the process that started this one, if it runs on this machine."""
    fields = _stat_if_there(pid)
    return int(fields[1]) if fields else None


def own_seconds() -> float:
    """Return the CPU time of this process."""
    return time.process_time()


def own_and_ended_seconds() -> float:
    """Return the CPU time of this process and of its ended children."""
    ended = os.times()
    return own_seconds() + ended.children_user + ended.children_system


class Meter:
    """CPU time of a side's rounds by process; the first round is the warm-up and does not count."""

    def __init__(self, clocks: Mapping[str, Clock | None], settle: float = 0.0) -> None:
        self._clocks = {name: clock for name, clock in clocks.items() if clock} if PROC.exists() else {}
        self._settle = settle
        self._taken: list[dict[str, float]] = []

    def around(self, side: Side, units: int = 1) -> Side:
        """Wrap a side to measure its CPU time; a round of size n does n times `units` of work."""

        async def measured(size: int) -> float:
            before = {name: clock() for name, clock in self._clocks.items()}
            figure = await side(size)
            if self._clocks and self._settle:
                await asyncio.sleep(self._settle)
            done = size * units
            self._taken.append(
                {name: (self._clocks[name]() - was) * 1000 / done for name, was in before.items()}
            )
            return figure

        return measured

    def figures(self) -> dict[str, float]:
        """Return each process's median milliseconds per unit, as the figures of a row."""
        rounds = self._taken[1:]
        return {f"cpu_{name}": median(each[name] for each in rounds) for name in (rounds or [{}])[0]}


def with_raw(meter: Meter) -> dict[str, float]:
    """Return the cost of the raw engine's side; its program, the `client`, is named `raw`."""
    names = {"cpu_client": "cpu_raw", "cpu_database": "cpu_raw_database"}
    return {names[name]: figure for name, figure in meter.figures().items()}


def _stat(pid: int) -> list[str]:
    """Return the fields after the name, which may contain any characters."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _seconds(fields: list[str]) -> float:
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")


def _pids() -> list[int]:
    return [int(each.name) for each in PROC.iterdir() if each.name.isdigit()]


def _stat_if_there(pid: int) -> list[str]:
    try:
        return _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return []
