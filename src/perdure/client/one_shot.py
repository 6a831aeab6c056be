"""A session for programs that send a few requests and end: only streams load an HTTP library."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from perdure.client.session import HttpSession, NeverSent, Outgoing
from perdure.kernel.errors import StorageClosed

if TYPE_CHECKING:
    import ssl

    from perdure.client.connections import ClientConnections, Pools

MAX_ANSWER = 1 << 30
"""Maximum bytes of a response."""
MAX_HEADERS = 200


class OneShotSession(HttpSession):
    """Sends each request over its own connection. Streams and long waits use aiohttp, which the first of
    them loads, because loading it takes longer than most commands."""

    def _new_pools(self) -> Any:
        return _LaterPools(self.connection_timeout, self._tls_context)

    async def send(self, sending: Outgoing) -> tuple[int, bytes]:
        if sending.long_poll:
            return await super().send(sending)
        if self.closed:
            raise StorageClosed("the client is closed")
        async with asyncio.timeout(sending.timeout or None):
            reader, writer = await self._connect()
            try:
                writer.write(self._head(sending) + (sending.body or b""))
                await writer.drain()
                return await _answer(reader)
            finally:
                writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = urlsplit(self.base_url)
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            async with asyncio.timeout(self.connection_timeout):
                return await asyncio.open_connection(url.hostname, port, ssl=self._tls_context)
        except (OSError, TimeoutError) as error:
            raise NeverSent(str(error) or "timed out") from error

    def _head(self, sending: Outgoing) -> bytes:
        url = urlsplit(self.base_url)
        query = "?" + urlencode(sending.query) if sending.query else ""
        headers = {
            "Host": url.netloc,
            **sending.headers,
            "Content-Length": str(len(sending.body or b"")),
            "Connection": "close",
        }
        lines = [f"{sending.method} {url.path}{sending.path}{query} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read the status and the body of a response."""
    try:
        status = int((await reader.readuntil(b"\r\n")).split(b" ", 2)[1])
        headers: dict[str, str] = {}
        while (line := (await reader.readuntil(b"\r\n")).strip()) and len(headers) < MAX_HEADERS:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return status, await _chunks(reader)
        if "content-length" in headers:
            return status, await reader.readexactly(_bounded(int(headers["content-length"])))
        return status, await reader.read(MAX_ANSWER)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
        raise ConnectionResetError("the answer is incomplete or not HTTP") from error


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        body += await reader.readexactly(_bounded(size + len(body)) - len(body))
        await reader.readuntil(b"\r\n")
        if not size:
            return bytes(body)


def _bounded(size: int) -> int:
    if not 0 <= size <= MAX_ANSWER:
        raise ValueError("the answer is too large")
    return size


class _LaterPools:
    """Connections that load their library and open with the first request."""

    def __init__(self, connection_timeout: float, tls: ssl.SSLContext | None) -> None:
        self.closed = False
        self._arguments = (connection_timeout, tls)
        self._pools: Pools | None = None

    async def get(self) -> ClientConnections:
        if self.closed:
            raise StorageClosed("the client is closed")
        if self._pools is None:
            from perdure.client.connections import Pools

            self._pools = Pools(*self._arguments)
        return await self._pools.get()

    async def close(self) -> None:
        self.closed = True
        if self._pools is not None:
            await self._pools.close()
