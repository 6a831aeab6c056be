"""Signals inside one process, across its threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Self

from perdure.kernel.signals.port import Hint, Stream, Watch


class _Listener:
    """Receives keys from any thread and wakes its waiter in the event loop that created it."""

    def __init__(self, hub: LocalSignals, channel: str) -> None:
        self.channel = channel
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def notify(self, keys: Iterable[str]) -> None:
        """Deliver keys from any thread. A closed loop has no waiters, so its listener is closed."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, tuple(keys))
        except RuntimeError:
            self.close()

    def _deliver(self, keys: tuple[str, ...]) -> None:
        self._add(keys)
        self.wake()

    def wake(self) -> None:
        """End the wait; call this in the listener's loop."""
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()


class LocalWatch(_Listener):
    """The changed keys of one watcher."""

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

    def pass_on(self) -> None:
        """Do nothing: every other watcher received the same hints."""

    def close(self) -> None:
        self._hub.forget(self)


class LocalTurn(LocalWatch):
    """A watcher in a group; a hint wakes one watcher of the group.

    The hub assigns a hint under its lock, so that no hint is lost: a hint that this watcher did not take or
    handle goes to another watcher of the group.
    """

    def __init__(self, hub: LocalSignals, channel: str, keys: frozenset[str], group: Hashable) -> None:
        super().__init__(hub, channel, keys)
        self.group = group
        self.is_free = False
        """True if the watcher waits and has no assigned hints."""
        self.assigned: set[str] = set()
        self._taken: frozenset[str] = frozenset()

    def _add(self, keys: tuple[str, ...]) -> None:
        """Do nothing: the hub assigned the keys when it published them."""

    async def changed(self, timeout: float | None = None) -> frozenset[str]:
        self._taken = self._hub.take_assigned(self, then_free=True)
        if not self._taken:
            try:
                await self._wait(timeout)
            except BaseException:
                self._hub.take_assigned(self, then_free=False, keep=True)
                raise
            self._taken = self._hub.take_assigned(self, then_free=False)
        return self._taken

    def pass_on(self) -> None:
        taken, self._taken = self._taken, frozenset()
        self._hub.pass_on(self, taken)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is not None:
            self.pass_on()

    def close(self) -> None:
        super().close()
        left, self.assigned = self.assigned, set()
        self._hub.pass_on(self, left)


class LocalStream(_Listener):
    """The keys of one follower in order, up to a limit."""

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


_Notified = dict[_Listener, list[str]]


class _Watchers:
    """The watchers of one key: single ones, and groups in the order of their turns."""

    __slots__ = ("groups", "single")

    def __init__(self) -> None:
        self.single: set[LocalWatch] = set()
        self.groups: dict[Hashable, dict[LocalTurn, None]] = {}

    def __bool__(self) -> bool:
        return bool(self.single or self.groups)

    def __iter__(self) -> Iterator[LocalWatch]:
        yield from self.single
        for turns in self.groups.values():
            yield from turns

    def add(self, watch: LocalWatch) -> None:
        if isinstance(watch, LocalTurn):
            self.groups.setdefault(watch.group, {})[watch] = None
        else:
            self.single.add(watch)

    def discard(self, watch: LocalWatch) -> None:
        if not isinstance(watch, LocalTurn):
            self.single.discard(watch)
        elif (turns := self.groups.get(watch.group)) is not None:
            turns.pop(watch, None)
            if not turns:
                del self.groups[watch.group]

    def notify(self, key: str, times: int, notified: _Notified) -> None:
        """Notify all single watchers, and in each group as many as there are hints."""
        for watch in self.single:
            notified.setdefault(watch, []).append(key)
        for turns in self.groups.values():
            _assign(turns, key, times, notified)


def _assign(turns: dict[LocalTurn, None], key: str, times: int, notified: _Notified) -> None:
    """Assign a key to as many watchers of a group as there are hints."""
    # A watcher that is woken anyway can take this hint too; it passes on hints that it cannot handle.
    chosen = [listener for listener in notified if isinstance(listener, LocalTurn) and listener in turns][
        :times
    ]
    for turn in (*chosen, *_next_turns(turns, times - len(chosen))):
        turn.assigned.add(key)
        notified.setdefault(turn, []).append(key)


def _next_turns(turns: dict[LocalTurn, None], times: int) -> list[LocalTurn]:
    """Choose waiting watchers and move them to the end; if none waits, choose a busy one."""
    chosen: list[LocalTurn] = []
    for turn in turns:
        if len(chosen) >= times:
            break
        if turn.is_free:
            turn.is_free = False
            chosen.append(turn)
    if not chosen and times > 0:
        chosen = [next(iter(turns))]
    for turn in chosen:
        del turns[turn]
        turns[turn] = None
    return chosen


class LocalSignals:
    """The watchers and followers of one process, by channel and key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[Hint, _Watchers] = {}
        self._streams: dict[str, set[LocalStream]] = {}
        self.on_untaken: Callable[[Iterable[Hint]], None] | None = None
        """Receives hints that were passed on without another watcher in this process."""

    def publish(self, hints: Iterable[Hint] | Mapping[Hint, int]) -> None:
        notified: _Notified = {}
        with self._lock:
            for hint, times in counted(hints).items():
                channel, key = hint
                watchers = self._watchers.get(hint)
                if watchers is not None:
                    watchers.notify(key, times, notified)
                for stream in self._streams.get(channel, ()):
                    if key.startswith(stream.prefix):
                        notified.setdefault(stream, []).append(key)
        _notify_all(notified)

    def pass_on(self, turn: LocalTurn, keys: Iterable[str]) -> None:
        """Assign hints to other watchers of the group, or to other processes."""
        notified: _Notified = {}
        left: list[Hint] = []
        with self._lock:
            for key in keys:
                watchers = self._watchers.get((turn.channel, key))
                turns = None if watchers is None else watchers.groups.get(turn.group)
                if turns:
                    _assign(turns, key, 1, notified)
                else:
                    left.append((turn.channel, key))
        _notify_all(notified)
        if left and self.on_untaken is not None:
            self.on_untaken(left)

    def take_assigned(self, turn: LocalTurn, *, then_free: bool, keep: bool = False) -> frozenset[str]:
        """Take the watcher's assigned hints. Without any, it becomes free or busy, as `then_free` says."""
        with self._lock:
            turn.is_free = then_free and not turn.assigned
            if keep:
                return frozenset()
            assigned, turn.assigned = frozenset(turn.assigned), set()
            return assigned

    def watch(self, channel: str, keys: Iterable[str], group: Hashable = None) -> Watch:
        wanted = frozenset(keys)
        watch = (
            LocalWatch(self, channel, wanted) if group is None else LocalTurn(self, channel, wanted, group)
        )
        with self._lock:
            for key in wanted:
                self._watchers.setdefault((channel, key), _Watchers()).add(watch)
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
        """Return every hint watched in this process."""
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
        """Return the channels followed in this process."""
        with self._lock:
            return tuple(self._streams)

    def close(self) -> None:
        """Wake all waiters; their next read raises StorageClosed."""
        with self._lock:
            left = {watch for watchers in self._watchers.values() for watch in watchers}
            streams = {stream for streams in self._streams.values() for stream in streams}
            self._watchers.clear()
            self._streams.clear()
        for watch in left:
            watch.notify(watch.keys)
        for stream in streams:
            stream.notify(())


def _notify_all(notified: _Notified) -> None:
    for listener, keys in notified.items():
        listener.notify(keys)


def counted(hints: Iterable[Hint] | Mapping[Hint, int]) -> Mapping[Hint, int]:
    """Return the count of each hint, by default 1."""
    return hints if isinstance(hints, Mapping) else dict.fromkeys(hints, 1)
