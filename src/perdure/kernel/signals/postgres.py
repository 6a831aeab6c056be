"""Signals between processes by LISTEN and NOTIFY, on a connection of their own.

What is lost while the connection is down is made up for by polling; see the rooms that watch.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import asyncpg

from perdure.kernel.background import Background
from perdure.kernel.signals.local import LocalSignals
from perdure.kernel.signals.port import Hint, Stream, Watch

logger = logging.getLogger(__name__)

CHANNEL = "perdure"
NOTIFY = "SELECT pg_notify($1, $2)"
PAYLOAD_BYTES = 7900
"""The server takes less than 8,000."""
_AIM_BYTES = 7000
WANTED = "signals.wanted"
"""The channel on which processes say which channels they follow; an empty key asks the others to say so."""
REPEAT_SECONDS = 10.0
WANTED_SECONDS = 30.0
_FAILURES = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


class PostgresSignals:
    """A local hub whose hints also reach the hubs of other processes."""

    def __init__(self, background: Background, connect: Callable[[], Awaitable[Any]]) -> None:
        self._connect = connect
        self._background = background
        self._local = LocalSignals()
        self._origin = os.urandom(6).hex()
        self._lock = threading.Lock()
        self._outgoing: dict[Hint, None] = {}
        self._started = False
        self._wanted: dict[str, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None

    def publish(self, hints: Iterable[Hint]) -> None:
        hints = list(hints)
        self._local.publish(hints)
        with self._lock:
            self._outgoing.update(dict.fromkeys(hints))
            self._start()
        self._stir()

    def watch(self, channel: str, keys: Iterable[str]) -> Watch:
        with self._lock:
            self._start()
        return self._local.watch(channel, keys)

    def watched(self, channel: str) -> frozenset[str]:
        return self._local.watched(channel)

    def follow(self, channel: str, prefix: str, limit: int) -> Stream:
        stream = self._local.follow(channel, prefix, limit)
        self._say_wanted()
        return stream

    def wanted(self, channel: str) -> bool:
        """Here, or in another process that said so a while ago at most."""
        if self._local.wanted(channel):
            return True
        return bool(self._wanted) and time.monotonic() < self._wanted.get(channel, 0.0)

    def _say_wanted(self) -> None:
        hints = [(WANTED, channel) for channel in self._local.followed()]
        if hints:
            self.publish(hints)

    async def _repeat_wanted(self) -> None:
        self._say_wanted()

    def close(self) -> None:
        self._local.close()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._background.spawn(self._serve())
            self._background.every(REPEAT_SECONDS, self._repeat_wanted)

    def _stir(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not wake.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    async def _serve(self) -> None:
        """Keep one connection; when it is lost, make another."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        pause = 0.1
        while True:
            try:
                await self._converse()
                pause = 0.1
            except _FAILURES as error:
                logger.debug("signals: %s; trying again in %s s", type(error).__name__, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)

    async def _converse(self) -> None:
        connection = await self._connect()
        try:
            for payload in _payloads(self._origin, [(WANTED, "")]):
                await connection.execute(NOTIFY, CHANNEL, payload)
            await connection.add_listener(CHANNEL, self._hear)
            await self._send_forever(connection)
        finally:
            connection.terminate()

    async def _send_forever(self, connection: Any) -> None:
        assert self._wake is not None
        connection.add_termination_listener(lambda _: self._stir())
        while not connection.is_closed():
            with self._lock:
                hints, self._outgoing = list(self._outgoing), {}
            for payload in _payloads(self._origin, hints):
                await connection.execute(NOTIFY, CHANNEL, payload)
            if not self._outgoing:
                self._wake.clear()
                if not self._outgoing and not connection.is_closed():
                    await self._wake.wait()

    def _hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        origin, hints = json.loads(str(payload))
        if origin == self._origin:
            return
        self._local.publish([(channel, key) for channel, key in hints])
        for channel, key in hints:
            if channel == WANTED:
                self._hear_wanted(key)

    def _hear_wanted(self, channel: str) -> None:
        if channel:
            self._wanted[channel] = time.monotonic() + WANTED_SECONDS
        else:
            self._say_wanted()


def _payloads(origin: str, hints: list[Hint]) -> Iterable[str]:
    """The hints in payloads that fit the server's limit."""
    if not hints:
        return
    whole = json.dumps([origin, hints])
    if len(whole) <= PAYLOAD_BYTES or len(hints) == 1:
        yield whole
    else:
        step = max(len(hints) * _AIM_BYTES // len(whole), 1)
        for start in range(0, len(hints), step):
            yield from _payloads(origin, hints[start : start + step])
