"""The port of signals: publish keys on channels, watch keys on channels.

A signal is a hint. It may come late, twice or not at all; whoever is woken reads the database again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

Hint = tuple[str, str]


class Watch(Protocol):
    """A watcher of some keys of one channel, bound to the event loop that made it."""

    async def changed(self, timeout: float | None = None) -> frozenset[str]:
        """Wait for hints and take them; empty when `timeout` seconds passed without one."""
        ...

    def close(self) -> None: ...


class Signals(Protocol):
    """Carries hints inside a process, and between processes where the engine can."""

    def publish(self, hints: Iterable[Hint]) -> None:
        """Tell every watcher; callable from any thread."""
        ...

    def watch(self, channel: str, keys: Iterable[str]) -> Watch:
        """Begin to watch; must be called in a running event loop."""
        ...

    def watched(self, channel: str) -> frozenset[str]:
        """The keys that somebody in this process watches now."""
        ...

    def close(self) -> None: ...
