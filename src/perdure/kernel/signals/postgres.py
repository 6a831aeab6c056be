"""Signals between processes by LISTEN and NOTIFY, on a separate connection.

Hints that are lost while the connection is down are replaced by polling; see the services that watch.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any, Protocol

import asyncpg

from perdure.kernel.background import Background
from perdure.kernel.retry import Backoff
from perdure.kernel.signals.port import Hint
from perdure.kernel.signals.shared import WANTED, SharedSignals

logger = logging.getLogger(__name__)

CHANNEL = "perdure"
NOTIFY = "SELECT pg_notify($1, $2)"
DO_NOT_WAIT = "SET synchronous_commit = off"
PAYLOAD_BYTES = 7900
"""The server's limit is 8,000 bytes."""
_AIM_BYTES = 7000
_FAILURES = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


class SignalConnections(Protocol):
    """Source of the connection for hints."""

    @property
    def is_pooled(self) -> bool:
        """True if a pooler shares the connection; known once it is open."""
        ...

    async def single(self) -> Any: ...


class PostgresSignals(SharedSignals):
    """A local hub whose hints also reach the hubs of other processes on the same database."""

    def __init__(self, background: Background, connections: SignalConnections) -> None:
        super().__init__(background)
        self._connections = connections

    async def _serve(self) -> None:
        """Keep one connection; reconnect with backoff when it is lost."""
        self._enter_loop()
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                await self._run_connection()
                backoff.reset()
                pause = backoff.next()
            except _FAILURES as error:
                pause = backoff.next()
                logger.debug("signals: %s; connecting again in %.1f s", type(error).__name__, pause)
            await asyncio.sleep(pause)

    async def _run_connection(self) -> None:
        connection = await self._connections.single()
        try:
            # A hint may be lost, so its commit need not wait for the disk. Behind a pooler, the setting would
            # stay with a session that later commits other clients' writes.
            if not self._connections.is_pooled:
                await connection.execute(DO_NOT_WAIT)
            await connection.add_listener(CHANNEL, self._receive)
            for payload in _build_payloads(self._origin, [(WANTED, "")]):
                await self._notify(connection, payload)
            await self._send_forever(connection)
        finally:
            connection.terminate()

    async def _send_forever(self, connection: Any) -> None:
        assert self._wake is not None
        connection.add_termination_listener(lambda _: self._wake_sender())
        while not connection.is_closed():
            for payload in _build_payloads(self._origin, list(self._take_outgoing())):
                await self._notify(connection, payload)
            if not self._outgoing:
                self._wake.clear()
                if not self._outgoing and not connection.is_closed():
                    await self._wake.wait()

    async def _notify(self, connection: Any, payload: str) -> None:
        if not self._connections.is_pooled:
            await connection.execute(NOTIFY, CHANNEL, payload)
            return
        async with connection.transaction():
            await connection.execute(NOTIFY, CHANNEL, payload)

    def _receive(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        origin, hints = json.loads(str(payload))
        self._deliver(origin, [(channel, key) for channel, key in hints])


def _build_payloads(origin: str, hints: list[Hint]) -> Iterable[str]:
    """Split the hints into payloads that fit the server's limit."""
    if not hints:
        return
    whole = json.dumps([origin, hints])
    if len(whole) <= PAYLOAD_BYTES or len(hints) == 1:
        yield whole
    else:
        step = max(len(hints) * _AIM_BYTES // len(whole), 1)
        for start in range(0, len(hints), step):
            yield from _build_payloads(origin, hints[start : start + step])
