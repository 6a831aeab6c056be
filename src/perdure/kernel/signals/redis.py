"""Signals between processes through Redis or Valkey, under separate key names."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ClusterCrossSlotError, MovedError, RedisError

from perdure.kernel.background import Background
from perdure.kernel.errors import InvalidInput, NotSupported
from perdure.kernel.retry import Backoff
from perdure.kernel.signals.local import LocalSignals, LocalStream, LocalWatch
from perdure.kernel.signals.port import CLUSTER_REASON, CarrierStatus, Hint, Stream, Watch
from perdure.kernel.signals.shared import MAX_OUTGOING, WANTED, SharedSignals

# --- keys and channels ------------------------------------------------------------------------------------


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


# --- the connection ---------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

BLOCK_SECONDS = 1.0
"""Seconds that a read waits before it pings the server; shorter than any sensible poll interval."""
MARGIN_SECONDS = 1.0
LEAST_CONNECTIONS = 4
LIST_LENGTH = 64
LIST_SECONDS = 60
HINTS_IN_MESSAGE = 500
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

_FAILURES = (OSError, TimeoutError, RedisError)
_OF_CLUSTER = (MovedError, AskError, ClusterCrossSlotError)
"""Errors that only a cluster node returns."""
_Message = tuple[str, list[Hint]]


class RedisSignals(SharedSignals):
    """A local hub whose hints also reach the hubs of other processes with the same Redis and prefix.

    A hint that work is ready wakes one waiting process; every other hint reaches all watchers.
    """

    def __init__(
        self,
        background: Background,
        url: str,
        *,
        prefix: str = "",
        max_connections: int = 50,
        block_seconds: float = BLOCK_SECONDS,
    ) -> None:
        super().__init__(background, Hub(self._touch))
        # Other processes have not received these hints; a hint of work goes to one of them.
        self._local.on_untaken = self._send_soon
        self._block = block_seconds
        self._keys = Keys(prefix)
        self._pool = make_pool(url, max_connections, block_seconds + MARGIN_SECONDS)
        self._client: Any = Redis(connection_pool=self._pool)
        options = self._pool.connection_kwargs
        self.where = str(
            options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
        )
        self._interests = Interests(self._keys, self._local)
        self._touched: set[Hint] = set()
        self._marks: dict[str, int] = {}
        self._failures: dict[str, str] = {}
        self._refused: str | None = None
        self._heard = False
        self._clustered = False
        self._closing = False
        self._listener: Any = None
        self._waited_for = asyncio.Event()
        self._waiting_on: dict[str, Hint] = {}
        """The Redis lists of work that this process waits on, and their hints."""
        self._sweep = os.urandom(12).hex()

    def close(self) -> None:
        # The driver can lose a cancellation in Python 3.11, so every loop checks this flag.
        self._closing = True
        super().close()

    # --- as a Carrier ---------------------------------------------------------------------------------------

    def mark_running(self, run_ids: Iterable[str], seconds: float) -> None:
        self._mark(dict.fromkeys(run_ids, max(math.ceil(seconds), 1)))

    def unmark_running(self, run_ids: Iterable[str]) -> None:
        self._mark(dict.fromkeys(run_ids, 0))

    async def try_sweep(self, seconds: float) -> bool:
        lifetime = max(math.ceil(seconds), 1)
        answer = await self._ask("SET", self._keys.sweep, self._sweep, "NX", "EX", lifetime)
        # Without an answer, only the lock in the database decides.
        return answer is not None

    async def end_sweep(self) -> None:
        await self._ask("EVAL", RELEASE, 1, self._keys.sweep, self._sweep)

    def status(self) -> tuple[CarrierStatus, str | None]:
        if self._clustered:
            return "down", CLUSTER_REASON
        reason = next(iter(list(self._failures.values())), None)
        if reason is not None:
            return "down", reason
        return ("ok" if self._heard else "unknown"), None

    def pool_statistics(self) -> Mapping[str, int]:
        return {
            "idle_connections": len(self._pool._available_connections),
            "in_use_connections": len(self._pool._in_use_connections),
            "max_connections": self._pool.max_connections,
        }

    async def _ask(self, *command: str | int) -> Any:
        """Send a command and return the answer, or the error instead of it."""

        async def send() -> Any:
            try:
                return await self._client.execute_command(*command)
            except _FAILURES as error:
                return error

        return await self._background.ask(send)

    def _mark(self, marks: dict[str, int]) -> None:
        with self._lock:
            if len(self._marks) < MAX_OUTGOING:
                self._marks.update(marks)
            self._start()
        self._wake_sender()

    def _touch(self, channel: str, keys: Iterable[str]) -> None:
        if channel in NAMED:
            with self._lock:
                self._touched.update((channel, key) for key in keys)
                self._start()
            self._wake_sender()

    # --- the three connections ----------------------------------------------------------------------------

    async def _serve(self) -> None:
        self._enter_loop()
        assert self._wake is not None
        self._wake.set()
        roles = {"sending": self._send_forever, "listening": self._listen, "waiting": self._wait_for_work}
        try:
            async with asyncio.TaskGroup() as group:
                for role, work in roles.items():
                    group.create_task(self._keep(role, work))
        finally:
            with contextlib.suppress(*_FAILURES):
                await self._pool.disconnect()

    async def _keep(self, role: str, work: Callable[[], Awaitable[None]]) -> None:
        """Reconnect with backoff after every lost connection."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while not self._closing:
            try:
                await work()
            except _FAILURES as error:
                if role not in self._failures:
                    backoff.reset()
                self._note_failure(role, error)
            except Exception as error:
                logger.exception("Redis signals: %s failed", role)
                self._note_failure(role, error)
            await asyncio.sleep(backoff.next())

    @contextlib.asynccontextmanager
    async def _open_connection(self) -> AsyncIterator[Any]:
        connection = await self._pool.get_connection()
        try:
            yield connection
        finally:
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    def _note_failure(self, role: str, error: BaseException) -> None:
        if isinstance(error, _OF_CLUSTER):
            self._note_cluster()
        elif not self._failures:
            text = "Redis at %s fails (%s: %s); falling back to polling"
            logger.warning(text, self.where, type(error).__name__, error)
        self._failures[role] = f"{type(error).__name__}: {error}"

    def _note_cluster(self) -> None:
        if not self._clustered:
            logger.warning("Redis at %s: %s; falling back to polling", self.where, CLUSTER_REASON)
        self._clustered = True

    def _note_answer(self, role: str) -> None:
        if self._failures.pop(role, None) is not None and not self._failures:
            logger.warning("Redis at %s answers again", self.where)

    # --- sending ------------------------------------------------------------------------------------------

    async def _send_forever(self) -> None:
        assert self._wake is not None
        while not self._closing:
            await self._wake.wait()
            self._wake.clear()
            await self._follow_interests()
            hints = self._take_outgoing()
            with self._lock:
                marks, self._marks = self._marks, {}
            if hints or marks:
                await self._send(hints, marks)

    async def _send(self, hints: dict[Hint, int], marks: dict[str, int]) -> None:
        pipe = self._client.pipeline(transaction=False)
        self._write_hints(pipe, hints)
        for run_id, seconds in marks.items():
            name = self._keys.running(run_id)
            pipe.set(name, self._origin, ex=seconds) if seconds else pipe.delete(name)
        try:
            answers = await pipe.execute(raise_on_error=False)
        except _FAILURES:
            self._put_back(hints, marks)
            raise
        self._note_answer("sending")
        if any(isinstance(answer, _OF_CLUSTER) for answer in answers):
            self._note_cluster()
            return
        refused = next((str(answer) for answer in answers if isinstance(answer, Exception)), None)
        if refused is not None and refused != self._refused:
            logger.warning("Redis at %s refuses some commands: %s", self.where, refused)
            self._refused = refused

    def _write_hints(self, pipe: Any, hints: dict[Hint, int]) -> None:
        for hint, times in hints.items():
            work = self._keys.work(hint)
            if work is not None:
                pipe.lpush(work, *[self._origin] * min(times, LIST_LENGTH))
                pipe.ltrim(work, 0, LIST_LENGTH - 1)
                pipe.expire(work, LIST_SECONDS)
        for name, payload in self._messages(hints):
            pipe.publish(name, payload)

    def _messages(self, hints: Iterable[Hint]) -> Iterator[tuple[str, bytes]]:
        rest: list[Hint] = []
        for hint in hints:
            own = self._keys.own(hint)
            if own is None and self._keys.work(hint) is None:
                rest.append(hint)
            elif own is not None:
                yield own, msgspec.json.encode((self._origin, [hint]))
        for start in range(0, len(rest), HINTS_IN_MESSAGE):
            part = rest[start : start + HINTS_IN_MESSAGE]
            yield self._keys.hints, msgspec.json.encode((self._origin, part))

    def _put_back(self, hints: dict[Hint, int], marks: dict[str, int]) -> None:
        assert self._wake is not None
        with self._lock:
            self._add_outgoing(hints)
            self._marks = marks | self._marks
        self._wake.set()

    async def _follow_interests(self) -> None:
        with self._lock:
            touched, self._touched = self._touched, set()
        if any(self._keys.work(hint) for hint in touched):
            self._waited_for.set()
            await self._wait_for_more()
        commands = self._interests.update(touched) if touched else []
        listener = self._listener
        # `_listen` reconnects after a loss, with all current subscriptions.
        with contextlib.suppress(*_FAILURES):
            for command in commands:
                if listener is not None and listener.is_connected:
                    await listener.send_command(*command, check_health=False)

    # --- listening ----------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        async with self._open_connection() as connection:
            self._listener = connection
            try:
                for command in self._interests.everything():
                    await connection.send_command(*command, check_health=False)
                await self._read_forever(connection)
            finally:
                self._listener = None

    async def _read_forever(self, connection: Any) -> None:
        asked = False
        while not self._closing:
            message = await connection.read_response(timeout=self._block)
            if message is not None:
                asked = False
                self._receive(message)
            elif asked:
                raise TimeoutError("no answer to a ping")
            else:
                asked = True
                await connection.send_command("PING", check_health=False)

    def _receive(self, message: list[Any]) -> None:
        kind, *rest = message
        if kind == b"subscribe":
            self._on_subscribed(rest[0].decode())
        elif kind in (b"message", b"pmessage"):
            self._receive_message(rest[-2].decode(), rest[-1])

    def _on_subscribed(self, name: str) -> None:
        """Wake watchers once, because a change may have come before the subscription."""
        if name == self._keys.hints:
            self._local.publish([hint for hint in self._local.awaited() if self._keys.own(hint) is None])
            self.publish([(WANTED, "")])
            self._heard = True
            self._note_answer("listening")
        else:
            self._local.publish(self._interests.names.get(name, ()))

    def _receive_message(self, name: str, payload: bytes) -> None:
        try:
            origin, hints = msgspec.json.decode(payload, type=_Message)
        except msgspec.MsgspecError:
            # A message of another program: only its channel names the hints.
            origin, hints = "", list(self._interests.names.get(name, ()))
        self._deliver(origin, hints)

    # --- waiting for work ---------------------------------------------------------------------------------

    async def _wait_for_work(self) -> None:
        async with self._open_connection() as connection:
            while not self._closing:
                self._waited_for.clear()
                self._waiting_on = self._get_work_lists()
                if not self._waiting_on:
                    self._note_answer("waiting")
                    await self._waited_for.wait()
                    continue
                lists = (*self._waiting_on, self._keys.woken(self._origin))
                await connection.send_command("BLPOP", *lists, self._block, check_health=False)
                # The pool's read timeout is a little longer than the wait.
                answer = await connection.read_response()
                self._note_answer("waiting")
                if answer is not None:
                    self._on_work(*answer)

    def _get_work_lists(self) -> dict[str, Hint]:
        return {name: hint for hint in self._local.awaited() if (name := self._keys.work(hint)) is not None}

    async def _wait_for_more(self) -> None:
        """End the wait for work if more agents are waited for now, so that the next wait includes them."""
        if self._waiting_on and not self._get_work_lists().keys() <= self._waiting_on.keys():
            name = self._keys.woken(self._origin)
            pipe = self._client.pipeline(transaction=False)
            pipe.lpush(name, self._origin)
            pipe.expire(name, LIST_SECONDS)
            with contextlib.suppress(*_FAILURES):
                await pipe.execute(raise_on_error=False)

    def _on_work(self, name: bytes, element: bytes) -> None:
        hint = self._waiting_on.get(name.decode())
        if hint is None:
            return
        if self._local.is_watched(hint):
            # Waiters in this process were woken when it was published.
            if element != self._origin.encode():
                self._local.publish([hint])
            return
        with self._lock:
            self._add_outgoing({hint: 1})
        self._wake_sender()


def make_pool(url: str, max_connections: int, seconds: float) -> Any:
    """Create a pool in which no connection and no answer takes longer than `seconds`."""
    options = {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "socket_keepalive": True,
        "health_check_interval": 15,
        "client_name": "perdure",
        "retry": Retry(NoBackoff(), 0),
        "max_connections": max(max_connections, LEAST_CONNECTIONS),
    }
    try:
        pool = ConnectionPool.from_url(url, **options)
    except ValueError:
        # The reason might quote the password.
        raise InvalidInput("redis_url is not the URL of a Redis; write redis://host:port/0") from None
    pool.connection_kwargs.update(protocol=2, decode_responses=False)
    return pool


async def examine(url: str, seconds: float = 2.0) -> tuple[float, str]:
    """Measure a round trip and name the server; OSError without an answer, NotSupported for a cluster."""
    pool = make_pool(url, LEAST_CONNECTIONS, seconds)
    client: Any = Redis(connection_pool=pool)
    try:
        about = await client.info("server")
        if about.get("redis_mode") == "cluster" or about.get("server_mode") == "cluster":
            raise NotSupported(CLUSTER_REASON)
        began = time.perf_counter()
        await client.execute_command("PING")
        taken = time.perf_counter() - began
    except RedisError as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    finally:
        await pool.disconnect()
    name = str(about.get("server_name") or "redis")
    return taken, f"{name} {about.get(name + '_version') or about.get('redis_version', '')}".strip()
