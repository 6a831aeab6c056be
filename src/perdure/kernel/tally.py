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

MAX_PLACES: Final = 2_000
"""Number of counts, and of durations, that a process keeps: callers choose the names of queues."""
OTHER: Final = "other"
"""Label for everything beyond `MAX_PLACES`."""


class TallyEntry(NamedTuple):
    """Something that happened in a namespace: under which name and label, how long it took, if it did, and
    how many times."""

    name: str
    ns: int | None
    label: str
    seconds: float | None = None
    times: int = 1


def grouped(durations: Iterable[float]) -> Iterable[tuple[float, int]]:
    """Durations as fewer notes that add up to the same: the mean of those in a bucket, and their number."""
    buckets: dict[int, list[float]] = {}
    for seconds in durations:
        buckets.setdefault(bisect_left(SECONDS_BUCKETS, seconds), []).append(seconds)
    return [(sum(each) / len(each), len(each)) for each in buckets.values()]


Place = tuple[int | None, str]
"""A namespace and a label."""


class Durations:
    """How often something took how long."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(SECONDS_BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        self.buckets[bisect_left(SECONDS_BUCKETS, seconds)] += times
        self.total += seconds * times

    def include(self, other: Durations) -> None:
        """Add what another has."""
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.total += other.total

    def copy(self) -> Durations:
        made = Durations()
        made.buckets, made.total = list(self.buckets), self.total
        return made

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
        self._counts: dict[tuple[str, int | None, str], int] = {}
        self._durations: dict[tuple[str, int | None, str], Durations] = {}
        self._lock = threading.Lock()

    def add(self, notes: Iterable[TallyEntry]) -> None:
        """Add what a committed transaction noted; from any thread."""
        with self._lock:
            for name, ns, label, seconds, times in notes:
                key = (name, ns, label)
                if seconds is None:
                    if key not in self._counts and len(self._counts) >= MAX_PLACES:
                        key = (name, ns, OTHER)
                    self._counts[key] = self._counts.get(key, 0) + times
                else:
                    durations = self._durations.get(key) or self._new_durations(name, ns, label)
                    durations.add(seconds, times)

    def _new_durations(self, name: str, ns: int | None, label: str) -> Durations:
        key = (name, ns, label if len(self._durations) < MAX_PLACES else OTHER)
        return self._durations.setdefault(key, Durations())

    def counts(self, name: str) -> dict[str, int]:
        """How often something happened, by label."""
        found: dict[str, int] = {}
        for (_, label), count in self.counts_by_place(name).items():
            found[label] = found.get(label, 0) + count
        return found

    def counts_by_place(self, name: str) -> dict[Place, int]:
        """How often something happened, by namespace and label."""
        with self._lock:
            return {(ns, label): count for (each, ns, label), count in self._counts.items() if each == name}

    def durations(self, name: str) -> dict[str, Durations]:
        """How often something took how long, by label."""
        found: dict[str, Durations] = {}
        for (_, label), each in self.durations_by_place(name).items():
            found.setdefault(label, Durations()).include(each)
        return found

    def durations_by_place(self, name: str) -> dict[Place, Durations]:
        """How often something took how long, by namespace and label."""
        with self._lock:
            return {
                (ns, label): durations.copy()
                for (each, ns, label), durations in self._durations.items()
                if each == name
            }
