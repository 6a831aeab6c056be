"""The port of signals: publish keys on channels, watch keys on channels.

A signal is a hint. It may come late, twice or not at all; whoever is woken reads the database again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Protocol, runtime_checkable

Hint = tuple[str, str]
Wanted = Callable[[str], bool]
CarrierStatus = Literal["ok", "down", "unknown"]


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


@runtime_checkable
class Carrier(Protocol):
    """Signals that a server of their own carries. It knows nothing that the database does not know better."""

    def wake_another(self, queue: str) -> None:
        """Wake one more waiting process: said by whoever got as much work as it could take."""
        ...

    def mark_running(self, run_ids: Iterable[str], seconds: float) -> None:
        """Say that runs are being worked on, for so many seconds; sent when it can be."""
        ...

    def unmark_running(self, run_ids: Iterable[str]) -> None: ...

    async def try_sweep(self, seconds: float) -> bool:
        """Whether to sweep now; False while another process does. True also when the server is down."""
        ...

    async def end_sweep(self) -> None:
        """Let others sweep, if this process was the one that did."""
        ...

    def status(self) -> tuple[CarrierStatus, str | None]:
        """Whether the server answers, as far as is known, and why not."""
        ...

    def pool_statistics(self) -> Mapping[str, int]:
        """How many connections there are: `idle_connections`, `in_use_connections`, `max_connections`."""
        ...


def carrier_of(signals: Signals) -> Carrier | None:
    """The server that carries these signals, if there is one."""
    return signals if isinstance(signals, Carrier) else None
