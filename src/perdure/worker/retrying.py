"""Doing something until the database, or the server before it, has done it."""

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
    StorageClosed,
    StorageError,
    TooManyRequests,
    Unreachable,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

TRANSIENT = (StorageError, Unreachable, TooManyRequests)
"""What may pass. All of it says that nothing was done, except for `OutcomeUnknown`."""


def backoff(number: int, first: float, longest: float) -> float:
    """The pause before try number `number` + 1: twice as long each time, and never quite the same."""
    full = min(longest, first * 2.0 ** min(number - 1, 60))
    return full * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads, it hides nothing


def is_transient(error: PerdureError, *, idempotent: bool) -> bool:
    """Whether to do it again: not into a store that was closed, and not if it may have been done."""
    if isinstance(error, StorageClosed | InvalidInput):
        return False
    if isinstance(error, OutcomeUnknown):
        return idempotent
    return isinstance(error, TRANSIENT)


async def retry_until(
    action: Callable[[], Awaitable[T]],
    *,
    what: str,
    still_owned: Callable[[], bool],
    idempotent: bool = False,
) -> T:
    """Do something again and again while what hinders it may pass and it is worth it."""
    tries = 0
    while True:
        try:
            return await action()
        except PerdureError as error:
            if not is_transient(error, idempotent=idempotent) or not still_owned():
                raise
            tries += 1
            pause = backoff(tries, FIRST_PAUSE, LONGEST_PAUSE)
            logger.warning("%s: %s: %s; again in %.1f s", what, error.code, error.message, pause)
        await asyncio.sleep(pause)
