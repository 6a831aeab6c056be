"""What signals between processes have in common: a local hub, what waits to be sent, and who wants what."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable

from perdure.kernel.background import Background
from perdure.kernel.signals.local import LocalSignals
from perdure.kernel.signals.port import Hint, Stream, Watch

WANTED = "signals.wanted"
"""The channel on which processes say which channels they follow; an empty key asks the others to say so."""
REPEAT_SECONDS = 10.0
WANTED_SECONDS = 30.0
MAX_OUTGOING = 20_000
"""Hints kept while nothing can be sent. Whoever misses one reads the database at its next poll."""


class SharedSignals:
    """A local hub whose hints also reach the hubs of other processes. A subclass carries them: `_serve`."""

    def __init__(self, background: Background, local: LocalSignals | None = None) -> None:
        self._background = background
        self._local = local or LocalSignals()
        self._origin = os.urandom(6).hex()
        self._lock = threading.Lock()
        self._outgoing: dict[Hint, int] = {}
        self._started = False
        self._wanted: dict[str, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None

    async def _serve(self) -> None:
        """Send what is in `_outgoing` and hear what others send, until it is cancelled."""
        raise NotImplementedError

    def publish(self, hints: Iterable[Hint]) -> None:
        hints = list(hints)
        self._local.publish(hints)
        with self._lock:
            self._add_outgoing(dict.fromkeys(hints, 1))
            self._start()
        self._stir()

    def watch(self, channel: str, keys: Iterable[str]) -> Watch:
        with self._lock:
            self._start()
        return self._local.watch(channel, keys)

    def watched(self, channel: str) -> frozenset[str]:
        return self._local.watched(channel)

    def follow(self, channel: str, prefix: str, limit: int) -> Stream:
        stream = self._local.follow(channel, prefix, limit)
        self._say_wanted()
        return stream

    def wanted(self, channel: str) -> bool:
        """Here, or in another process that said so a while ago at most."""
        if self._local.wanted(channel):
            return True
        return bool(self._wanted) and time.monotonic() < self._wanted.get(channel, 0.0)

    def close(self) -> None:
        self._local.close()

    def _add_outgoing(self, hints: dict[Hint, int]) -> None:
        for hint, times in hints.items():
            if hint in self._outgoing:
                self._outgoing[hint] += times
            elif len(self._outgoing) < MAX_OUTGOING:
                self._outgoing[hint] = times

    def _take_outgoing(self) -> dict[Hint, int]:
        with self._lock:
            hints, self._outgoing = self._outgoing, {}
        return hints

    def _say_wanted(self) -> None:
        hints = [(WANTED, channel) for channel in self._local.followed()]
        if hints:
            self.publish(hints)

    async def _repeat_wanted(self) -> None:
        self._say_wanted()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._background.spawn(self._serve())
            self._background.every(REPEAT_SECONDS, self._repeat_wanted)

    def _began(self) -> None:
        """Called by `_serve` in its event loop, before anything else."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _stir(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not wake.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    def _hear(self, origin: str, hints: list[Hint]) -> None:
        """Tell this process of hints that another one sent; ones own come back too."""
        if origin == self._origin:
            return
        self._local.publish(hints)
        for channel, key in hints:
            if channel == WANTED:
                self._hear_wanted(key)

    def _hear_wanted(self, channel: str) -> None:
        if channel:
            self._wanted[channel] = time.monotonic() + WANTED_SECONDS
        else:
            self._say_wanted()
