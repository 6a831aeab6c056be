"""Time in whole microseconds since the epoch, on a steady clock and on the wall clock.

`docs/adr/0020-deadlines-on-a-steady-clock.md` explains the use of each clock.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

MICROS = 1_000_000
STEP = MICROS
"""Smaller differences between the clocks are not a step."""
SLOWING = 20
"""While it is ahead of the wall clock, the steady clock is slower by 1/20."""
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Source of `:now` and `:wall` on SQLite."""

    def now(self) -> int:
        """Return the time in microseconds, later than that of every earlier call.

        A step of the wall clock does not move this clock; after a step back it runs slower for a while.
        """
        ...

    def wall(self, now: int) -> int:
        """Return the wall clock's time, or `now`, which was just read, if they differ by at most 1 s."""
        ...

    def behind(self) -> int:
        """Return how far the wall clock was stepped ahead of this clock; 0 without a step."""
        ...

    def follow(self, micros: int) -> None:
        """Step ahead to the wall clock, after the stored deadlines were moved."""
        ...


class SystemClock:
    """Clock that starts at the wall clock's time and then runs steadily; it never repeats or goes backwards.

    While it is ahead of the wall clock, after a step back, it is slower by 1/20.
    """

    def __init__(self) -> None:
        self._read = _read_steady_clock()
        self._offset = _read_wall_clock() - self._read
        self._last = 0
        self._lock = threading.Lock()

    def now(self) -> int:
        with self._lock:
            steady = _read_steady_clock()
            ahead = steady + self._offset - _read_wall_clock()
            if ahead > STEP:
                self._offset -= min((steady - self._read) // SLOWING, ahead)
            self._read = steady
            self._last = max(self._last + 1, steady + self._offset)
            return self._last

    def wall(self, now: int) -> int:
        wall = _read_wall_clock()
        return wall if abs(wall - now) > STEP else now

    def behind(self) -> int:
        ahead = _read_wall_clock() - _read_steady_clock() - self._offset
        return ahead if ahead > STEP else 0

    def follow(self, micros: int) -> None:
        with self._lock:
            self._offset += micros


def _read_wall_clock() -> int:
    return time.time_ns() // 1000


def _read_steady_clock() -> int:
    return boottime_ns() // 1000


def boottime() -> float:
    """Return the seconds of a clock that is never set and includes the time in which the machine sleeps.

    On Linux `time.monotonic` stops during sleep. Other systems have no better clock.
    """
    return boottime_ns() / 1e9


def boottime_ns() -> int:
    return time.clock_gettime_ns(_BOOTTIME) if _BOOTTIME is not None else time.monotonic_ns()


def to_seconds(micros: int) -> float:
    return micros / MICROS


def to_seconds_or_none(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS


def to_micros(seconds: float) -> int:
    return round(seconds * MICROS)


def to_micros_or_none(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * MICROS)


def to_iso(micros: int) -> str:
    """Format a time as ISO 8601 in UTC, to the millisecond; such texts sort by time."""
    moment = datetime.fromtimestamp(micros // 1000 / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_iso(text: str) -> int:
    """Parse a time in ISO 8601 to microseconds, in UTC without a time zone. ValueError for other texts."""
    moment = datetime.fromisoformat(text)
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def to_iso_or_none(micros: int | None) -> str | None:
    return None if micros is None else to_iso(micros)


def human_duration(seconds: float) -> str:
    """Format a duration for people, such as `3 min`."""
    for unit, least in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * least:
            return f"{seconds / least:.0f} {'min' if unit == 'm' else unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{max(0.0, seconds):.1f} s"
