"""The port of signals: publish keys on channels, watch keys on channels.

A signal is a hint. It may come late, twice or not at all; whoever is woken reads the database again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

Hint = tuple[str, str]
Wanted = Callable[[str], bool]


def nobody_wants(channel: str, /) -> bool:
    """The answer where nobody can follow anything."""
    return False


class Watch(Protocol):
    """A watcher of some keys of one channel, bound to the event loop that made it."""

    async def changed(self, timeout: float | None = None) -> frozenset[str]:
        """Wait for hints and take them; empty when `timeout` seconds passed without one."""
        ...

    def close(self) -> None: ...


class Stream(Protocol):
    """A reader of a whole channel, or of what in it begins alike, bound to the event loop that made it."""

    async def next(self, timeout: float | None = None) -> list[str] | None:
        """Wait for keys and take them, the latest last; empty when `timeout` seconds passed without one.

        None says that more came than could be kept: whoever reads starts over from the database.
        """
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

    def follow(self, channel: str, prefix: str, limit: int) -> Stream:
        """Begin to read every key that begins with `prefix`; up to `limit` are kept until they are taken."""
        ...

    def wanted(self, channel: str) -> bool:
        """Whether somebody follows the channel: hints that nobody wants need not be made."""
        ...

    def close(self) -> None: ...
