"""The names under which hints travel in Redis, and which of them somebody in this process wants to hear."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from perdure.kernel.signals.local import LocalSignals, LocalStream, LocalWatch
from perdure.kernel.signals.port import Hint, Stream, Watch

READY = "rollouts.ready"
QUEUE = "agents"
WORK: Hint = (READY, QUEUE)
"""That runs wait to be claimed: it goes by a list, of which each element wakes one process."""
STREAMS = "streams"
CONTROL = "threads.control"
NAMED = frozenset({READY, STREAMS, CONTROL})
"""The channels with names of their own in Redis; the rest share one."""

_THREAD = "thread/"
_GLOB = re.compile(r"([*?\[\]\\])")


class Keys:
    """Every key and channel, below a prefix that keeps installations apart."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.queue = prefix + "run:queue"
        self.sweep = prefix + "run:sweep"
        self.hints = prefix + "perdure:hints"

    def running(self, run_id: str) -> str:
        return f"{self._prefix}run:{run_id}:running"

    def own(self, hint: Hint) -> str | None:
        """The channel of this hint alone, or None if it travels with all others."""
        channel, key = hint
        name = key.partition("/")[2]
        if channel == STREAMS and name.startswith(_THREAD):
            return f"{self._prefix}thread:{name.removeprefix(_THREAD)}:stream"
        if channel == STREAMS:
            return f"{self._prefix}run:{name}:stream"
        return f"{self._prefix}run:{name}:control" if channel == CONTROL else None

    def patterns(self, channel: str) -> list[str]:
        """What matches every name that hints of the channel can have."""
        kinds = {STREAMS: ("run:*:stream", "thread:*:stream"), CONTROL: ("run:*:control",)}
        return [_GLOB.sub(r"\\\1", self._prefix) + kind for kind in kinds.get(channel, ())]


class Hub(LocalSignals):
    """A hub that tells of every change in who watches and follows what."""

    def __init__(self, touch: Callable[[str, Iterable[str]], None]) -> None:
        super().__init__()
        self._touch = touch

    def watch(self, channel: str, keys: Iterable[str]) -> Watch:
        keys = frozenset(keys)
        watch = super().watch(channel, keys)
        self._touch(channel, keys)
        return watch

    def forget(self, watch: LocalWatch) -> None:
        super().forget(watch)
        self._touch(watch.channel, watch.keys)

    def follow(self, channel: str, prefix: str, limit: int) -> Stream:
        stream = super().follow(channel, prefix, limit)
        self._touch(channel, ("",))
        return stream

    def leave(self, stream: LocalStream) -> None:
        super().leave(stream)
        self._touch(stream.channel, ("",))


class Interests:
    """Which channels of Redis somebody in this process wants to hear, and for which hints."""

    def __init__(self, keys: Keys, local: LocalSignals) -> None:
        self._keys = keys
        self._local = local
        self.names: dict[str, set[Hint]] = {}
        self.patterns: set[str] = set()

    def update(self, touched: Iterable[Hint]) -> list[tuple[str, ...]]:
        """Look again at hints whose watchers have changed; gives the commands that follow from it."""
        before = set(self.names)
        # A channel that is heard already is joined again for a new hint: the answer tells it to look once.
        grown = {name for hint in touched if (name := self._keys.own(hint)) and self._look_at(name, hint)}
        patterns = {each for channel in self._local.followed() for each in self._keys.patterns(channel)}
        changes = {
            "SUBSCRIBE": grown & self.names.keys(),
            "UNSUBSCRIBE": before - self.names.keys(),
            "PSUBSCRIBE": patterns - self.patterns,
            "PUNSUBSCRIBE": self.patterns - patterns,
        }
        self.patterns = patterns
        return [(command, *sorted(names)) for command, names in changes.items() if names]

    def everything(self) -> list[tuple[str, ...]]:
        """The commands of a new connection."""
        commands = [("SUBSCRIBE", self._keys.hints, *self.names)]
        return [*commands, ("PSUBSCRIBE", *self.patterns)] if self.patterns else commands

    def _look_at(self, name: str, hint: Hint) -> bool:
        """Whether somebody new is interested in a channel."""
        known = self.names.setdefault(name, set())
        before = hint in known
        (known.add if self._local.is_watched(hint) else known.discard)(hint)
        if not known:
            del self.names[name]
        return not before and hint in known
