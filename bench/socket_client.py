"""A cheap HTTP client: open connections, requests as bytes, and no library."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from bench.stream_clients import HEAD_END, unchunked

LAST_CHUNK = b"0\r\n\r\n"
SHOWN = 300


class Connection(asyncio.Protocol):
    """Requests one after the other over one connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server has closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(HEAD_END)
        if not found:
            return
        lines = head.lower()
        if b"\r\ntransfer-encoding: chunked" in lines:
            if not body.endswith(LAST_CHUNK):
                return
            body = unchunked(body)
        elif len(body) < _length(lines):
            return
        self._received = b""
        answer, self._answer = self._answer, None
        assert answer is not None
        if not head.startswith(b"HTTP/1.1 2"):
            answer.set_exception(RuntimeError(f"refused: {head[:SHOWN]!r} {body[:SHOWN]!r}"))
        else:
            answer.set_result(body)

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return the body of the response."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the server has closed the connection")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _length(head: bytes) -> int:
    _, found, rest = head.partition(b"\r\ncontent-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


def request_to(host: str, path: str, body: object) -> bytes:
    """Build a request that sends JSON."""
    sent = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(sent)}\r\n\r\n"
    )
    return head.encode() + sent


class SocketClient:
    """Requests to a server over one connection per caller."""

    def __init__(self, url: str, callers: int) -> None:
        self._address = urlsplit(url)
        self._callers = callers
        self.connections: list[Connection] = []
        self._free: list[Connection] = []

    @property
    def host(self) -> str:
        return self._address.netloc

    async def open(self) -> None:
        """Open missing connections, because a server closes idle ones after some seconds."""
        left = [each for each in self.connections if each.is_open]
        self.connections = left + [await self._connect() for _ in range(self._callers - len(left))]
        self._free = list(self.connections)

    async def _connect(self) -> Connection:
        assert self._address.hostname
        assert self._address.port
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(Connection, self._address.hostname, self._address.port)
        return made

    async def post(self, path: str, body: object) -> Any:
        return json.loads(await self._ask(request_to(self.host, path, body)))

    async def get(self, path: str) -> bytes:
        """Return the body of the response."""
        return await self._ask(f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())

    async def _ask(self, request: bytes) -> bytes:
        connection = self._free.pop()
        try:
            return await connection.ask(request)
        finally:
            self._free.append(connection)

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


@asynccontextmanager
async def socket_client(url: str, callers: int) -> AsyncIterator[SocketClient]:
    client = SocketClient(url, callers)
    try:
        await client.open()
        yield client
    finally:
        client.close()
