"""Connections of a client: one set per event loop, closed with the loop or by `close`."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

import aiohttp

from perdure.kernel.errors import StorageClosed

CONNECTIONS = 100
IDLE_SECONDS = 4.0
"""Shorter than the idle time of a server, so that a request does not meet a connection being closed."""
CLOSE_SECONDS = 5.0


class ClientConnections(NamedTuple):
    """Connections of one event loop. Long requests have their own, so that they do not delay short ones."""

    short: aiohttp.ClientSession
    long_poll: aiohttp.ClientSession


class Pools:
    """Connections of all event loops; a forked process starts with none."""

    def __init__(self, connection_timeout: float, tls: ssl.SSLContext | None = None) -> None:
        self.closed = False
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connection_timeout)
        self._ssl = True if tls is None else tls
        self._lock = threading.Lock()
        self._opened: dict[
            asyncio.AbstractEventLoop, tuple[ClientConnections, AsyncGenerator[ClientConnections]]
        ] = {}
        self._inherited: Any = None
        _all_pools.add(self)

    async def get(self) -> ClientConnections:
        if self.closed:
            raise StorageClosed("the client is closed")
        loop = asyncio.get_running_loop()
        pair = self._opened.get(loop)
        if pair is None:
            opening = self._open(loop)
            pair = (await anext(opening), opening)
            with self._lock:
                self._opened = {key: value for key, value in self._opened.items() if not key.is_closed()}
                self._opened[loop] = pair
        return pair[0]

    async def _open(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[ClientConnections]:
        """Open connections in a generator, because a closing event loop closes its generators first."""
        short, long_poll = self._session(CONNECTIONS), self._session(0)
        try:
            yield ClientConnections(short, long_poll)
        finally:
            with self._lock:
                self._opened.pop(loop, None)
            await short.close()
            await long_poll.close()
            await asyncio.sleep(0)

    def _session(self, limit: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=IDLE_SECONDS, ssl=self._ssl),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=True,
        )

    async def close(self) -> None:
        self.closed = True
        here = asyncio.get_running_loop()
        elsewhere = []
        for loop, (_, opened) in list(self._opened.items()):
            if loop is here:
                await opened.aclose()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(_finish(opened), loop)
                elsewhere.append(asyncio.wrap_future(closing))
        if elsewhere:
            # A loop that ends in the meantime closes its connections itself, and never answers.
            await asyncio.wait([asyncio.gather(*elsewhere, return_exceptions=True)], timeout=CLOSE_SECONDS)

    def renew(self) -> None:
        """Start without connections in a fork. Keep a reference to the parent's, so that none is closed."""
        self._inherited, self._opened, self._lock = self._opened, {}, threading.Lock()


_all_pools: weakref.WeakSet[Pools] = weakref.WeakSet()


async def _finish(opened: AsyncGenerator[ClientConnections]) -> None:
    await opened.aclose()


def _renew_all() -> None:
    for pools in list(_all_pools):
        pools.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
