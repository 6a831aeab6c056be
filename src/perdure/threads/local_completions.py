"""Ends of runs that this process writes, passed to waiters in the same process.

A hint names only the run that has ended. If the same process wrote the end, a waiter gets it without a read.
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
    """Registry of waiters by run, and of ends that are being written. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[Key, list[_Waiter]] = {}
        self._under_way: dict[Key, int] = {}

    def watch(self, key: Key) -> asyncio.Future[Finished | None]:
        """Return a future for the run's end, set if this process writes it. Release it with `forget`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Finished | None] = loop.create_future()
        with self._lock:
            self._waiters.setdefault(key, []).append((loop, future))
        return future

    def forget(self, key: Key, future: asyncio.Future[Any]) -> None:
        with self._lock:
            left = [waiter for waiter in self._waiters.get(key, ()) if waiter[1] is not future]
            if left:
                self._waiters[key] = left
            else:
                self._waiters.pop(key, None)

    def is_under_way(self, key: Key) -> bool:
        """Return whether this process is writing the end of the run."""
        return key in self._under_way

    def begin(self, key: Key) -> None:
        """Record that an end is being written."""
        with self._lock:
            self._under_way[key] = self._under_way.get(key, 0) + 1

    def done(self, key: Key, end: Finished | None) -> None:
        """Notify the waiters that the end was written, or with None that it was not."""
        with self._lock:
            left = self._under_way.pop(key) - 1
            if left:
                self._under_way[key] = left
            waiters = self._waiters.pop(key, ())
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_notify, future, end)
            except RuntimeError:
                if not loop.is_closed():
                    raise


def _notify(future: asyncio.Future[Finished | None], end: Finished | None) -> None:
    if not future.done():
        future.set_result(end)
