"""Tasks of any event loop that wait until pending data is sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


class Waiters:
    """Wakes waiting tasks. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def wait_while(self, condition: Callable[[], bool]) -> None:
        """Wait, in any loop, while a condition is true. Each wake checks it again."""
        loop = asyncio.get_running_loop()
        while condition():
            future: asyncio.Future[None] = loop.create_future()
            with self._lock:
                if not condition():
                    return
                self._waiting.append((loop, future))
            await future

    def wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
