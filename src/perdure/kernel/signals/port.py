"""The interface of signals: publish keys on channels, watch keys on channels, wait for a change.

A signal is a hint. It may come late, twice or not at all, so a reader that is woken reads the database again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from typing import Literal, Protocol, Self, TypeVar, runtime_checkable

T = TypeVar("T")

Hint = tuple[str, str]
Wanted = Callable[[str], bool]
CarrierStatus = Literal["ok", "down", "unknown"]
CLUSTER_REASON = (
    "it is a Redis Cluster, which perdure does not use, since a wait for work needs lists of several slots; "
    "name a server without cluster mode in redis_url, or leave it out"
)


def nobody_wants(channel: str, /) -> bool:
    """`Wanted` for a storage without signals: no channel has followers."""
    return False


class Watch(Protocol):
    """A watcher of some keys of one channel, bound to the event loop that made it. `with` closes it."""

    async def changed(self, timeout: float | None = None) -> frozenset[str]:
        """Wait for hints and take them; empty when `timeout` seconds passed without one."""
        ...

    def wake(self) -> None:
        """End the wait of `changed`, which then has no hints; in the watcher's event loop."""
        ...

    def pass_on(self) -> None:
        """Leave to others what `changed` took last, if its hints wake one of many."""
        ...

    def close(self) -> None:
        """Watch no more. Hints that wake one of many, and were not taken, are left to others."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close it; after an error, what was taken last is passed on."""
        ...


class Stream(Protocol):
    """A reader of all keys of a channel with a common prefix, bound to the event loop that made it."""

    async def next(self, timeout: float | None = None) -> list[str] | None:
        """Wait for keys and take them, the latest last; empty when `timeout` seconds passed without one.

        None means that more keys came than could be kept: start over from the database.
        """
        ...

    def close(self) -> None: ...


class Signals(Protocol):
    """Carries hints inside a process, and between processes where the engine can."""

    def publish(self, hints: Iterable[Hint] | Mapping[Hint, int]) -> None:
        """Wake the watchers of these keys; callable from any thread.

        Of a group of watchers a hint wakes one, or as many as it was given times.
        """
        ...

    def watch(self, channel: str, keys: Iterable[str], group: Hashable = None) -> Watch:
        """Start to watch keys; must be called in a running event loop.

        With a group, it is one of many who could do the same work: a hint wakes one of them.
        """
        ...

    def watched(self, channel: str) -> frozenset[str]:
        """The keys that are watched in this process now."""
        ...

    def follow(self, channel: str, prefix: str | tuple[str, ...], limit: int) -> Stream:
        """Start to read every key with this prefix, or with one of these.

        Up to `limit` keys are kept until they are taken.
        """
        ...

    def wanted(self, channel: str) -> bool:
        """Whether the channel has followers; hints for a channel without any need not be made."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Carrier(Protocol):
    """Signals that travel through a server of their own, such as Redis. The database stays the truth."""

    def mark_running(self, run_ids: Iterable[str], seconds: float) -> None:
        """Mark runs as executing for `seconds`; sent in the background."""
        ...

    def unmark_running(self, run_ids: Iterable[str]) -> None: ...

    async def try_sweep(self, seconds: float) -> bool:
        """Whether to sweep now: False while another process does, True if the server is down."""
        ...

    async def end_sweep(self) -> None:
        """Release the sweep if this process holds it."""
        ...

    def status(self) -> tuple[CarrierStatus, str | None]:
        """The last known state of the server, and the reason if it is down."""
        ...

    def pool_statistics(self) -> Mapping[str, int]:
        """Connection counts: `idle_connections`, `in_use_connections`, `max_connections`."""
        ...


def find_carrier(signals: Signals) -> Carrier | None:
    """The server that carries these signals, if there is one."""
    return signals if isinstance(signals, Carrier) else None


async def until(
    signals: Signals,
    channel: str,
    keys: Collection[str],
    look: Callable[[frozenset[str]], Awaitable[T]],
    *,
    timeout: float | None,
    poll: float = math.inf,
    first: float = 0.0,
    group: Hashable = None,
) -> T:
    """Call `look` until it gives something true or `timeout` seconds have passed; returns its last result.

    It is called at once (or after a hint within `first` seconds), after each hint about one of the keys, and
    after `poll` seconds without one. It gets the changed keys: all of them at first, none after a silence.
    `group` is that of `watch`.
    """
    clock = asyncio.get_running_loop().time
    deadline = math.inf if timeout is None else clock() + timeout
    with signals.watch(channel, keys, group) as watch:
        changed = frozenset(keys)
        if first > 0:
            await watch.changed(min(first, deadline - clock()))
        while not (result := await look(changed)):
            left = min(deadline - clock(), poll)
            if left <= 0:
                break
            changed = await watch.changed(None if left == math.inf else left)
        return result
