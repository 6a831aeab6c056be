"""Signals inside one process, across its threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from perdure.kernel.signals.port import Hint, Watch


class LocalWatch:
    """Collects the changed keys of one watcher and wakes it in its own loop."""

    def __init__(self, hub: LocalSignals, channel: str, keys: frozenset[str]) -> None:
        self.channel = channel
        self.keys = keys
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._changed: set[str] = set()
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, keys: Iterable[str]) -> None:
        """Called from any thread. A loop that has closed has nobody left to tell."""
        try:
            self._loop.call_soon_threadsafe(self._add, tuple(keys))
        except RuntimeError:
            self.close()

    def _add(self, keys: tuple[str, ...]) -> None:
        self._changed.update(keys)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def changed(self, timeout: float | None = None) -> frozenset[str]:
        if not self._changed:
            self._waiter = self._loop.create_future()
            await asyncio.wait([self._waiter], timeout=timeout)
            self._waiter = None
        changed, self._changed = frozenset(self._changed), set()
        return changed

    def close(self) -> None:
        self._hub.forget(self)


class LocalSignals:
    """A hub: which watcher looks at which key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[Hint, set[LocalWatch]] = {}

    def publish(self, hints: Iterable[Hint]) -> None:
        told: dict[LocalWatch, list[str]] = {}
        with self._lock:
            for channel, key in hints:
                for watch in self._watchers.get((channel, key), ()):
                    told.setdefault(watch, []).append(key)
        for watch, keys in told.items():
            watch.tell(keys)

    def watch(self, channel: str, keys: Iterable[str]) -> Watch:
        watch = LocalWatch(self, channel, frozenset(keys))
        with self._lock:
            for key in watch.keys:
                self._watchers.setdefault((channel, key), set()).add(watch)
        return watch

    def forget(self, watch: LocalWatch) -> None:
        with self._lock:
            for key in watch.keys:
                watchers = self._watchers.get((watch.channel, key))
                if watchers is not None:
                    watchers.discard(watch)
                    if not watchers:
                        del self._watchers[watch.channel, key]

    def watched(self, channel: str) -> frozenset[str]:
        with self._lock:
            return frozenset(key for on, key in self._watchers if on == channel)

    def close(self) -> None:
        """Wake everybody: what they read next says that the store is closed."""
        with self._lock:
            left = {watch for watchers in self._watchers.values() for watch in watchers}
            self._watchers.clear()
        for watch in left:
            watch.tell(watch.keys)
