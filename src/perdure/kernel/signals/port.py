"""Interface of signals: publish keys on channels, watch keys, wait for a change.

A signal is a hint. It may be late, duplicated or lost, so a woken reader reads the database again.
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
    "it is a Redis Cluster, which perdure does not support, because a wait for work needs several slots; "
    "name a server without cluster mode in redis_url, or leave it out"
)


def nobody_wants(channel: str, /) -> bool:
    """`Wanted` of a storage without signals: no channel has followers."""
    return False


class Watch(Protocol):
    """A watcher of some keys of one channel, bound to the event loop that created it. `with` closes it."""

    async def changed(self, timeout: float | None = None) -> frozenset[str]:
        """Wait for hints and take them; empty after `timeout` seconds without a hint."""
        ...

    def wake(self) -> None:
        """End the wait of `changed`, which then returns no hints; call this in the watcher's event loop."""
        ...

    def pass_on(self) -> None:
        """Pass the hints that `changed` took last to other watchers of the group."""
        ...

    def close(self) -> None:
        """Stop watching. In a group, hints that were not taken go to other watchers."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the watch; after an error, pass on the hints taken last."""
        ...


class Stream(Protocol):
    """A reader of all keys of a channel with a common prefix, bound to the event loop that created it."""

    async def next(self, timeout: float | None = None) -> list[str] | None:
        """Wait for keys and take them, the latest last; empty after `timeout` seconds without a key.

        None means that the limit of kept keys was exceeded: start over from the database.
        """
        ...

    def close(self) -> None: ...


class Signals(Protocol):
    """Carries hints inside a process, and between processes if the engine can."""

    def publish(self, hints: Iterable[Hint] | Mapping[Hint, int]) -> None:
        """Wake the watchers of these keys; callable from any thread.

        In a group of watchers a hint wakes one, or as many as its count.
        """
        ...

    def watch(self, channel: str, keys: Iterable[str], group: Hashable = None) -> Watch:
        """Watch keys; call this in a running event loop.

        In a group of watchers that could do the same work, a hint wakes only one.
        """
        ...

    def watched(self, channel: str) -> frozenset[str]:
        """Return the keys watched in this process."""
        ...

    def follow(self, channel: str, prefix: str | tuple[str, ...], limit: int) -> Stream:
        """Read every key with this prefix, or with one of these.

        Up to `limit` keys are kept until they are taken.
        """
        ...

    def wanted(self, channel: str) -> bool:
        """Return whether the channel has followers; without any, its hints can be omitted."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Carrier(Protocol):
    """Signals that travel through a separate server, such as Redis. The database stays the truth."""

    def mark_running(self, run_ids: Iterable[str], seconds: float) -> None:
        """Mark runs as executing for `seconds`; the mark is sent in the background."""
        ...

    def unmark_running(self, run_ids: Iterable[str]) -> None: ...

    async def try_sweep(self, seconds: float) -> bool:
        """Return whether to sweep now: False while another process does, True if the server is down."""
        ...

    async def end_sweep(self) -> None:
        """Release the sweep if this process holds it."""
        ...

    def status(self) -> tuple[CarrierStatus, str | None]:
        """Return the last known state of the server, and the reason if it is down."""
        ...

    def pool_statistics(self) -> Mapping[str, int]:
        """Return connection counts: `idle_connections`, `in_use_connections`, `max_connections`."""
        ...


def find_carrier(signals: Signals) -> Carrier | None:
    """Return the server that carries these signals, or None."""
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
    """Call `look` until its result is true or `timeout` seconds have passed; return the last result.

    `look` is called at once (or after a hint within `first` seconds), after each hint about a key, and after
    `poll` seconds without one. It receives the changed keys: all at first, none after a poll. `group` is that
    of `watch`.
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
