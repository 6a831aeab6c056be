"""The ends of runs that this process itself writes, handed to those who wait for them here.

A hint says only that a run has ended. Where the same process wrote the end, a waiter gets it without a read.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from perdure.threads.work import Finished

Key = tuple[int, str]
"""A namespace and a run."""

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Finished | None]"]


class LocalCompletions:
    """Who waits for which run, and which ends are being written now. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[Key, list[_Waiter]] = {}
        self._under_way: dict[Key, int] = {}

    def watch(self, key: Key) -> asyncio.Future[Finished | None]:
        """What will hold the run's end if this process writes it; given back with `forget`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Finished | None] = loop.create_future()
        with self._lock:
            self._waiters.setdefault(key, []).append((loop, future))
        return future

    def forget(self, key: Key, future: asyncio.Future[Any]) -> None:
        with self._lock:
            left = [each for each in self._waiters.get(key, ()) if each[1] is not future]
            if left:
                self._waiters[key] = left
            else:
                self._waiters.pop(key, None)

    def is_under_way(self, key: Key) -> bool:
        """Whether this process is about to say how the run has ended."""
        return key in self._under_way

    def begin(self, key: Key) -> None:
        """An end is being written."""
        with self._lock:
            self._under_way[key] = self._under_way.get(key, 0) + 1

    def done(self, key: Key, end: Finished | None) -> None:
        """It was written, or it was not; those who wait are told either way."""
        with self._lock:
            left = self._under_way.pop(key) - 1
            if left:
                self._under_way[key] = left
            waiters = self._waiters.pop(key, ())
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_tell, future, end)
            except RuntimeError:
                if not loop.is_closed():
                    raise


def _tell(future: asyncio.Future[Finished | None], end: Finished | None) -> None:
    if not future.done():
        future.set_result(end)
