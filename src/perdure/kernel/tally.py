"""What operations count of themselves: added up once their transaction is committed, and read by scrapes.

An operation may run twice, and counts for nothing if it is rolled back; so it only notes what it did, and the
driver adds that up after the commit.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

SECONDS_BUCKETS: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""The upper bounds of the buckets of durations, in seconds."""


class Note(NamedTuple):
    """Something that happened: under which name and label, and how long it took, where that matters."""

    name: str
    label: str
    seconds: float | None = None


class Durations:
    """How often something took how long."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(SECONDS_BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(SECONDS_BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """The buckets as Prometheus has them: how many took at most so long."""
        found, reached = [], 0
        for bound, count in zip((*map(str, SECONDS_BUCKETS), "+Inf"), self.buckets, strict=True):
            reached += count
            found.append((bound, float(reached)))
        return found


class Tally:
    """The sums of one database in one process."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._durations: dict[tuple[str, str], Durations] = {}
        self._lock = threading.Lock()

    def add(self, notes: Iterable[Note]) -> None:
        """Add what a committed transaction noted; from any thread."""
        with self._lock:
            for name, label, seconds in notes:
                if seconds is None:
                    self._counts[name, label] = self._counts.get((name, label), 0) + 1
                else:
                    durations = self._durations.get((name, label))
                    if durations is None:
                        durations = self._durations[name, label] = Durations()
                    durations.add(seconds)

    def counts(self, name: str) -> dict[str, int]:
        """How often something happened, by label."""
        with self._lock:
            return {label: count for (each, label), count in self._counts.items() if each == name}

    def durations(self, name: str) -> dict[str, tuple[list[tuple[str, float]], float]]:
        """The cumulative buckets and the sum of something's durations, by label."""
        with self._lock:
            found = [(label, each) for (known, label), each in self._durations.items() if known == name]
            return {label: (each.cumulative(), each.total) for label, each in found}
