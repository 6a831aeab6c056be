"""Signals inside one process, across its threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Self

from perdure.kernel.signals.port import Hint, Stream, Watch


class _Listener:
    """Receives keys from any thread and wakes its waiter in the event loop that made it."""

    def __init__(self, hub: LocalSignals, channel: str) -> None:
        self.channel = channel
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, keys: Iterable[str]) -> None:
        """Called from any thread. A closed loop has no waiters, so its listener is closed."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, tuple(keys))
        except RuntimeError:
            self.close()

    def _deliver(self, keys: tuple[str, ...]) -> None:
        self._add(keys)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, timeout: float | None) -> None:
        self._waiter = self._loop.create_future()
        await asyncio.wait([self._waiter], timeout=timeout)
        self._waiter = None

    def _add(self, keys: tuple[str, ...]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalWatch(_Listener):
    """Collects the changed keys of one watcher."""

    def __init__(self, hub: LocalSignals, channel: str, keys: frozenset[str]) -> None:
        super().__init__(hub, channel)
        self.keys = keys
        self._changed: set[str] = set()

    def _add(self, keys: tuple[str, ...]) -> None:
        self._changed.update(keys)

    async def changed(self, timeout: float | None = None) -> frozenset[str]:
        if not self._changed:
            await self._wait(timeout)
        changed, self._changed = frozenset(self._changed), set()
        return changed

    def close(self) -> None:
        self._hub.forget(self)


class LocalStream(_Listener):
    """Keeps the keys of one follower in order, up to a limit."""

    def __init__(self, hub: LocalSignals, channel: str, prefix: str | tuple[str, ...], limit: int) -> None:
        super().__init__(hub, channel)
        self.prefix = prefix
        self._limit = limit
        self._keys: dict[str, None] = {}
        self._overrun = False

    def _add(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            self._keys.pop(key, None)
            self._keys[key] = None
        if len(self._keys) > self._limit:
            self._keys.clear()
            self._overrun = True

    async def next(self, timeout: float | None = None) -> list[str] | None:
        if not self._keys and not self._overrun:
            await self._wait(timeout)
        keys, overrun = list(self._keys), self._overrun
        self._keys, self._overrun = {}, False
        return None if overrun else keys

    def close(self) -> None:
        self._hub.leave(self)


class LocalSignals:
    """The watchers and followers of one process, by channel and key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[Hint, set[LocalWatch]] = {}
        self._streams: dict[str, set[LocalStream]] = {}

    def publish(self, hints: Iterable[Hint]) -> None:
        told: dict[_Listener, list[str]] = {}
        with self._lock:
            for channel, key in hints:
                for watch in self._watchers.get((channel, key), ()):
                    told.setdefault(watch, []).append(key)
                for stream in self._streams.get(channel, ()):
                    if key.startswith(stream.prefix):
                        told.setdefault(stream, []).append(key)
        for listener, keys in told.items():
            listener.tell(keys)

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

    def is_watched(self, hint: Hint) -> bool:
        return hint in self._watchers

    def awaited(self) -> list[Hint]:
        """Every hint that is watched for in this process now."""
        with self._lock:
            return list(self._watchers)

    def follow(self, channel: str, prefix: str | tuple[str, ...], limit: int) -> Stream:
        stream = LocalStream(self, channel, prefix, limit)
        with self._lock:
            self._streams.setdefault(channel, set()).add(stream)
        return stream

    def leave(self, stream: LocalStream) -> None:
        with self._lock:
            streams = self._streams.get(stream.channel)
            if streams is not None:
                streams.discard(stream)
                if not streams:
                    del self._streams[stream.channel]

    def wanted(self, channel: str) -> bool:
        return channel in self._streams

    def followed(self) -> tuple[str, ...]:
        """The channels that are followed in this process now."""
        with self._lock:
            return tuple(self._streams)

    def close(self) -> None:
        """Wake all waiters: their next read raises StorageClosed."""
        with self._lock:
            left = {watch for watchers in self._watchers.values() for watch in watchers}
            streams = {stream for streams in self._streams.values() for stream in streams}
            self._watchers.clear()
            self._streams.clear()
        for watch in left:
            watch.tell(watch.keys)
        for stream in streams:
            stream.tell(())
