"""Redis keys and channels of hints, and the subscriptions of this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable

from perdure.kernel.signals.local import LocalSignals, LocalStream, LocalWatch
from perdure.kernel.signals.port import Hint, Stream, Watch

READY = "rollouts.ready"
QUEUE = "agents"
STREAMS = "streams"
CONTROL = "threads.control"
NAMED = frozenset({READY, STREAMS, CONTROL})
"""Channels with separate Redis channels; all others share one."""

_THREAD = "thread/"
_GLOB = re.compile(r"([*?\[\]\\])")


class Keys:
    """All Redis keys and channels, with a prefix that separates installations."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.queue = prefix + "run:queue"
        """List of work of any agent. The list of one agent has the agent's name as its suffix."""
        self.sweep = prefix + "run:sweep"
        self.hints = prefix + "perdure:hints"

    def running(self, run_id: str) -> str:
        return f"{self._prefix}run:{run_id}:running"

    def woken(self, origin: str) -> str:
        """Return the list that wakes this process while it waits for work."""
        return f"{self._prefix}run:woken:{origin}"

    def work(self, hint: Hint) -> str | None:
        """Return the list used as a wake-up queue of claimable runs: each element wakes one process."""
        channel, key = hint
        queue, _, agent = key.partition("/")
        if channel != READY or queue != QUEUE:
            return None
        return f"{self.queue}:{agent}" if agent else self.queue

    def own(self, hint: Hint) -> str | None:
        """Return the Redis channel of a single hint, or None if hints share one."""
        channel, key = hint
        name = key.partition("/")[2]
        if channel == STREAMS and name.startswith(_THREAD):
            return f"{self._prefix}thread:{name.removeprefix(_THREAD)}:stream"
        if channel == STREAMS:
            return f"{self._prefix}run:{name}:stream"
        return f"{self._prefix}run:{name}:control" if channel == CONTROL else None

    def patterns(self, channel: str) -> list[str]:
        """Return patterns for all Redis channels of a channel's hints."""
        kinds = {STREAMS: ("run:*:stream", "thread:*:stream"), CONTROL: ("run:*:control",)}
        return [_GLOB.sub(r"\\\1", self._prefix) + kind for kind in kinds.get(channel, ())]


class Hub(LocalSignals):
    """A hub that reports every change of its watchers and followers."""

    def __init__(self, touch: Callable[[str, Iterable[str]], None]) -> None:
        super().__init__()
        self._touch = touch

    def watch(self, channel: str, keys: Iterable[str], group: Hashable = None) -> Watch:
        keys = frozenset(keys)
        watch = super().watch(channel, keys, group)
        self._touch(channel, keys)
        return watch

    def forget(self, watch: LocalWatch) -> None:
        super().forget(watch)
        self._touch(watch.channel, watch.keys)

    def follow(self, channel: str, prefix: str | tuple[str, ...], limit: int) -> Stream:
        stream = super().follow(channel, prefix, limit)
        self._touch(channel, ("",))
        return stream

    def leave(self, stream: LocalStream) -> None:
        super().leave(stream)
        self._touch(stream.channel, ("",))


class Interests:
    """The Redis channels that this process subscribes to, with their hints."""

    def __init__(self, keys: Keys, local: LocalSignals) -> None:
        self._keys = keys
        self._local = local
        self.names: dict[str, set[Hint]] = {}
        self.patterns: set[str] = set()

    def update(self, touched: Iterable[Hint]) -> list[tuple[str, ...]]:
        """Update the hints whose watchers have changed; return the commands to send."""
        before = set(self.names)
        # A known channel is subscribed again for a new hint, because the answer makes its watcher look once.
        grown = {name for hint in touched if (name := self._keys.own(hint)) and self._look_at(name, hint)}
        patterns = {pattern for channel in self._local.followed() for pattern in self._keys.patterns(channel)}
        changes = {
            "SUBSCRIBE": grown & self.names.keys(),
            "UNSUBSCRIBE": before - self.names.keys(),
            "PSUBSCRIBE": patterns - self.patterns,
            "PUNSUBSCRIBE": self.patterns - patterns,
        }
        self.patterns = patterns
        return [(command, *sorted(names)) for command, names in changes.items() if names]

    def everything(self) -> list[tuple[str, ...]]:
        """Return the commands for a new connection."""
        commands = [("SUBSCRIBE", self._keys.hints, *self.names)]
        return [*commands, ("PSUBSCRIBE", *self.patterns)] if self.patterns else commands

    def _look_at(self, name: str, hint: Hint) -> bool:
        """Update the watched hints of a channel; return True for a new one."""
        hints = self.names.setdefault(name, set())
        before = hint in hints
        (hints.add if self._local.is_watched(hint) else hints.discard)(hint)
        if not hints:
            del self.names[name]
        return not before and hint in hints
