"""Base of signals between processes: a local hub, outgoing hints, and channels followed elsewhere."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Hashable, Iterable, Mapping

from perdure.kernel.background import Background
from perdure.kernel.signals.local import LocalSignals, counted
from perdure.kernel.signals.port import Hint, Stream, Watch

WANTED = "signals.wanted"
"""Channel on which processes announce the channels they follow; an empty key requests announcements."""
REPEAT_SECONDS = 10.0
WANTED_SECONDS = 30.0
MAX_OUTGOING = 20_000
"""Maximum number of hints kept while the connection is down. Watchers find further changes by polling."""


class SharedSignals:
    """A local hub whose hints also reach the hubs of other processes. A subclass sends them in `_serve`."""

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
        """Send the `_outgoing` hints and receive the hints of other processes, until it is cancelled."""
        raise NotImplementedError

    def publish(self, hints: Iterable[Hint] | Mapping[Hint, int]) -> None:
        hints = counted(hints)
        self._local.publish(hints)
        self._send_soon(hints)

    def _send_soon(self, hints: Iterable[Hint]) -> None:
        with self._lock:
            self._add_outgoing(dict.fromkeys(hints, 1))
            self._start()
        self._wake_sender()

    def watch(self, channel: str, keys: Iterable[str], group: Hashable = None) -> Watch:
        with self._lock:
            self._start()
        return self._local.watch(channel, keys, group)

    def watched(self, channel: str) -> frozenset[str]:
        return self._local.watched(channel)

    def follow(self, channel: str, prefix: str | tuple[str, ...], limit: int) -> Stream:
        stream = self._local.follow(channel, prefix, limit)
        self._announce_wanted()
        return stream

    def wanted(self, channel: str) -> bool:
        """Return whether the channel has followers here, or in a process that announced it recently."""
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

    def _announce_wanted(self) -> None:
        hints = [(WANTED, channel) for channel in self._local.followed()]
        if hints:
            self.publish(hints)

    async def _repeat_wanted(self) -> None:
        self._announce_wanted()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._background.spawn(self._serve())
            self._background.every(REPEAT_SECONDS, self._repeat_wanted)

    def _enter_loop(self) -> None:
        """Set up the event loop; `_serve` calls this first."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _wake_sender(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not wake.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    def _deliver(self, origin: str, hints: list[Hint]) -> None:
        """Publish another process's hints here; drop this process's own hints, which come back too."""
        if origin == self._origin:
            return
        self._local.publish(hints)
        for channel, key in hints:
            if channel == WANTED:
                self._note_wanted(key)

    def _note_wanted(self, channel: str) -> None:
        if channel:
            self._wanted[channel] = time.monotonic() + WANTED_SECONDS
        else:
            self._announce_wanted()
