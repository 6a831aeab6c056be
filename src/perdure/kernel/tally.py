"""Counts of operations: added up after the commit of their transaction, and read by scrapes.

An operation may run twice, and counts nothing if it is rolled back. It therefore only records entries, which
the driver adds up after the commit.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

SECONDS_BUCKETS: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Upper bounds of the duration buckets, in seconds."""

MAX_PLACES: Final = 2_000
"""Maximum number of counts, and of durations, in a process, because callers choose the names of queues."""
OTHER: Final = "other"
"""Label for everything beyond `MAX_PLACES`."""


class TallyEntry(NamedTuple):
    """An event in a namespace: its name and label, its duration if it has one, and its count."""

    name: str
    ns: int | None
    label: str
    seconds: float | None = None
    times: int = 1


def grouped(durations: Iterable[float]) -> Iterable[tuple[float, int]]:
    """Group durations by bucket; return the mean and the number of each bucket."""
    buckets: dict[int, list[float]] = {}
    for seconds in durations:
        buckets.setdefault(bisect_left(SECONDS_BUCKETS, seconds), []).append(seconds)
    return [(sum(bucket) / len(bucket), len(bucket)) for bucket in buckets.values()]


Place = tuple[int | None, str]
"""A namespace and a label."""


class Durations:
    """A histogram of durations."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(SECONDS_BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        self.buckets[bisect_left(SECONDS_BUCKETS, seconds)] += times
        self.total += seconds * times

    def include(self, other: Durations) -> None:
        """Add the durations of another histogram."""
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.total += other.total

    def copy(self) -> Durations:
        result = Durations()
        result.buckets, result.total = list(self.buckets), self.total
        return result

    def cumulative(self) -> list[tuple[str, float]]:
        """Return Prometheus buckets: upper bound and number of durations up to it."""
        result, reached = [], 0
        for bound, count in zip((*map(str, SECONDS_BUCKETS), "+Inf"), self.buckets, strict=True):
            reached += count
            result.append((bound, float(reached)))
        return result


class Tally:
    """The sums of one database in one process."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int | None, str], int] = {}
        self._durations: dict[tuple[str, int | None, str], Durations] = {}
        self._lock = threading.Lock()

    def add(self, notes: Iterable[TallyEntry]) -> None:
        """Add the entries of a committed transaction; callable from any thread."""
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
        """Return the counts of an event by label."""
        result: dict[str, int] = {}
        for (_, label), count in self.counts_by_place(name).items():
            result[label] = result.get(label, 0) + count
        return result

    def counts_by_place(self, name: str) -> dict[Place, int]:
        """Return the counts of an event by namespace and label."""
        with self._lock:
            return {(ns, label): count for (entry, ns, label), count in self._counts.items() if entry == name}

    def durations(self, name: str) -> dict[str, Durations]:
        """Return the durations of an event by label."""
        result: dict[str, Durations] = {}
        for (_, label), durations in self.durations_by_place(name).items():
            result.setdefault(label, Durations()).include(durations)
        return result

    def durations_by_place(self, name: str) -> dict[Place, Durations]:
        """Return the durations of an event by namespace and label."""
        with self._lock:
            return {
                (ns, label): durations.copy()
                for (entry, ns, label), durations in self._durations.items()
                if entry == name
            }
