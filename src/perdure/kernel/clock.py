"""Time in whole microseconds since the epoch, on a steady clock and on the wall clock.

`docs/adr/0020-deadlines-on-a-steady-clock.md` says which is used for what.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

MICROS = 1_000_000
STEP = MICROS
"""A smaller difference between the clocks is not a step."""
SLOWING = 20
"""Ahead of the wall clock, the steady clock is slower by one part in so many."""
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """The source of `:now` and `:wall` on SQLite."""

    def now(self) -> int:
        """The time in microseconds; each call gives a later one than the call before.

        A step of the wall clock does not move it; after a step back it is slower until it has caught up.
        """
        ...

    def wall(self, now: int) -> int:
        """What the wall clock shows; `now`, which was read just before, unless it was stepped."""
        ...

    def behind(self) -> int:
        """How far the wall clock was stepped ahead of this clock; 0 where it was not."""
        ...

    def follow(self, micros: int) -> None:
        """Go ahead to the wall clock, after the stored deadlines were moved."""
        ...


class SystemClock:
    """Starts with the wall clock's time and goes on steadily; it never repeats or goes backwards.

    While it is ahead of the wall clock, after a step back, it goes slower by a twentieth.
    """

    def __init__(self) -> None:
        self._read = _steady()
        self._offset = _wall() - self._read
        self._last = 0
        self._lock = threading.Lock()

    def now(self) -> int:
        with self._lock:
            steady = _steady()
            ahead = steady + self._offset - _wall()
            if ahead > STEP:
                self._offset -= min((steady - self._read) // SLOWING, ahead)
            self._read = steady
            self._last = max(self._last + 1, steady + self._offset)
            return self._last

    def wall(self, now: int) -> int:
        wall = _wall()
        return wall if abs(wall - now) > STEP else now

    def behind(self) -> int:
        ahead = _wall() - _steady() - self._offset
        return ahead if ahead > STEP else 0

    def follow(self, micros: int) -> None:
        with self._lock:
            self._offset += micros


def _wall() -> int:
    return time.time_ns() // 1000


def _steady() -> int:
    return boottime_ns() // 1000


def boottime() -> float:
    """Seconds of a clock that nobody sets, and that counts the time in which the machine sleeps.

    `time.monotonic` stands still during sleep on Linux; elsewhere it is the best there is.
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
    """A time as ISO 8601 in UTC, to the millisecond: texts in this form sort by time."""
    moment = datetime.fromtimestamp(micros // 1000 / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_iso(text: str) -> int:
    """A time in ISO 8601 as microseconds; without a time zone it is in UTC. ValueError if it is none."""
    moment = datetime.fromisoformat(text)
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def to_iso_or_none(micros: int | None) -> str | None:
    return None if micros is None else to_iso(micros)


def human_duration(seconds: float) -> str:
    """A duration for people to read, such as `3 min`."""
    for unit, least in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * least:
            return f"{seconds / least:.0f} {'min' if unit == 'm' else unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{max(0.0, seconds):.1f} s"
