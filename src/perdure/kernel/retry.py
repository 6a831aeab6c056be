"""Retries: the pause between tries, and the errors worth another try."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.kernel.errors import (
    InvalidInput,
    OutcomeUnknown,
    PerdureError,
    RequestTimeout,
    StorageClosed,
    StorageError,
    TooManyRequests,
    Unreachable,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

TRANSIENT = (StorageError, Unreachable, TooManyRequests, RequestTimeout)
"""Errors that may pass. After all of them, except `OutcomeUnknown`, nothing was changed."""


class Backoff:
    """Exponential backoff with jitter, in seconds.

    Pauses double from `first` up to `longest`; each is multiplied by a random factor from `jitter`, so that
    processes that failed together do not retry together. `chance` returns a number from 0 to 1.
    """

    __slots__ = ("_chance", "_failures", "_first", "_jitter", "_longest")

    def __init__(
        self,
        first: float = FIRST_PAUSE,
        longest: float = LONGEST_PAUSE,
        *,
        jitter: tuple[float, float] = (0.5, 1.0),
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._chance = chance
        self._failures = 0

    def delay(self, failures: int) -> float:
        """Return the pause after this number of consecutive failures, without changing the count."""
        low, high = self._jitter
        full = min(self._longest, self._first * 2.0 ** min(failures - 1, 60))
        return full * (low + self._chance() * (high - low))

    def next(self) -> float:
        """Count one more failure and return the pause after it."""
        self._failures += 1
        return self.delay(self._failures)

    def reset(self) -> None:
        """Start again from the first pause, after a success."""
        self._failures = 0


def is_transient(error: PerdureError, *, idempotent: bool) -> bool:
    """Return whether to retry: never on a closed store, and after `OutcomeUnknown` only idempotent calls."""
    if isinstance(error, StorageClosed | InvalidInput):
        return False
    if isinstance(error, OutcomeUnknown):
        return idempotent
    return isinstance(error, TRANSIENT)


async def retry_until(
    action: Callable[[], Awaitable[T]],
    *,
    what: str,
    still_owned: Callable[[], bool] = lambda: True,
    idempotent: bool = False,
    backoff: Backoff | None = None,
) -> T:
    """Retry a call until the database or server answers, for as long as `still_owned` is true."""
    backoff = backoff or Backoff()
    while True:
        try:
            return await action()
        except PerdureError as error:
            if not is_transient(error, idempotent=idempotent) or not still_owned():
                raise
            pause = backoff.next()
            logger.warning("%s: %s: %s; retrying in %.1f s", what, error.code, error.message, pause)
        await asyncio.sleep(pause)
