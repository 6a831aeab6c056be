"""A clock that only tests move, and a seeded source of identifiers."""

from __future__ import annotations

import random
import threading

from perdure.kernel.clock import to_micros


class ManualClock:
    """A clock that moves by a microsecond per reading, and by `advance`."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = to_micros(start)
        self._stepped = 0
        self._lock = threading.Lock()

    def now(self) -> int:
        with self._lock:
            self._now += 1
            return self._now

    def wall(self, now: int) -> int:
        return now + self._stepped

    def behind(self) -> int:
        return max(self._stepped, 0)

    def follow(self, micros: int) -> None:
        with self._lock:
            self._now += micros
            self._stepped -= micros

    def step(self, seconds: float) -> None:
        """Set only the wall clock."""
        with self._lock:
            self._stepped += to_micros(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock forward, or back by a negative number."""
        with self._lock:
            self._now += to_micros(seconds)


class SeededIds:
    """Identifiers that are the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def hex(self, size: int) -> str:
        return format(self._random.getrandbits(size * 4), "0" + str(size) + "x")
