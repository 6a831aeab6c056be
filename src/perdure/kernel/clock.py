"""Time in whole microseconds since the epoch, strictly increasing within one clock."""

from __future__ import annotations

import threading
import time
from typing import Protocol

MICROS = 1_000_000
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """The source of `:now` on SQLite."""

    def now(self) -> int:
        """The time in microseconds; each call gives a later one than the call before."""
        ...


class SystemClock:
    """The machine's clock, made strictly monotonic: it never repeats or goes backwards."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def now(self) -> int:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return self._last


def boottime() -> float:
    """Seconds of a clock that nobody sets, and that counts the time in which the machine sleeps.

    `time.monotonic` stands still during sleep on Linux; elsewhere it is the best there is.
    """
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()


def to_seconds(micros: int) -> float:
    return micros / MICROS


def to_seconds_or_none(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS


def to_micros(seconds: float) -> int:
    return round(seconds * MICROS)


def to_micros_or_none(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * MICROS)


def human_duration(seconds: float) -> str:
    """A duration for people to read, such as `3 min`."""
    for unit, least in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * least:
            return f"{seconds / least:.0f} {'min' if unit == 'm' else unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{max(0.0, seconds):.1f} s"
