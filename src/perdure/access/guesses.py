"""Limits for unknown secrets: wrong secrets per address, and database look-ups per server."""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic
from typing import Final

from perdure.kernel.errors import TooManyRequests

MAX_BUCKETS: Final = 4096
FAILURES_A_SECOND: Final = 2.0
FAILURES_AT_ONCE: Final = 60.0
LOOK_UPS_A_SECOND: Final = 100.0
_SERVER: Final = ""


class RateBucket:
    """A rate limit per name: a burst, then a number of requests per second."""

    def __init__(self, rate: float, size: float) -> None:
        self._rate = rate
        self._size = size
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has_room(self, name: str) -> bool:
        return self._count_left(name) >= 1

    def take(self, name: str) -> None:
        """Take one request from a name's budget."""
        self._set_left(name, self._count_left(name) - 1)

    def give_back(self, name: str) -> None:
        """Return one request that turned out not to count."""
        self._set_left(name, min(self._size, self._count_left(name) + 1))

    def _set_left(self, name: str, left: float) -> None:
        self._left[name] = (left, monotonic())
        self._left.move_to_end(name)
        if len(self._left) > MAX_BUCKETS:
            self._left.popitem(last=False)

    def _count_left(self, name: str) -> float:
        left, then = self._left.get(name, (self._size, 0.0))
        return min(self._size, left + (monotonic() - then) * self._rate)


class GuessLimits:
    """The limits of one server, shared by its protocols."""

    def __init__(self) -> None:
        self._failures = RateBucket(FAILURES_A_SECOND, FAILURES_AT_ONCE)
        self._look_ups = RateBucket(LOOK_UPS_A_SECOND, LOOK_UPS_A_SECOND)

    def count_failure(self, address: str) -> None:
        """Count a wrong secret of an address; raise TooManyRequests if it sent too many."""
        if not self._failures.has_room(address):
            raise TooManyRequests("too many wrong tokens came from this address; try again later")
        self._failures.take(address)

    def begin_look_up(self, address: str) -> None:
        """Count an unknown secret as wrong until the database confirms it."""
        self.count_failure(address)
        if not self._look_ups.has_room(_SERVER):
            self._failures.give_back(address)
            raise TooManyRequests("too many unknown tokens came to this server; try again later")
        self._look_ups.take(_SERVER)

    def forgive(self, address: str) -> None:
        """Take back a look-up, because the secret was right."""
        self._failures.give_back(address)
        self._look_ups.give_back(_SERVER)


class Guess:
    """A secret presented by a caller at an address. Without limits, nothing is counted."""

    __slots__ = ("_address", "_limits")

    def __init__(self, limits: GuessLimits | None = None, address: str = "") -> None:
        self._limits = limits
        self._address = address

    def count_failure(self) -> None:
        if self._limits is not None:
            self._limits.count_failure(self._address)

    def begin_look_up(self) -> None:
        if self._limits is not None:
            self._limits.begin_look_up(self._address)

    def forgive(self) -> None:
        if self._limits is not None:
            self._limits.forgive(self._address)


UNLIMITED: Final = Guess()
"""For callers authenticated before, and for code in this process."""
