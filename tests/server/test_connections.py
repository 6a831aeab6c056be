"""Real sockets: silent, slow and oversized clients, and too many connections."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from tests.security.test_doors import PUBLIC

from perdure import InMemoryLightningStore
from perdure.kernel.config import Settings
from perdure.runtime.app import build_app
from perdure.server.http import connections
from perdure.server.http.connections import (
    MAX_HEAD_BYTES,
    OTHER_FILES,
    PROBES,
    RESERVE,
    ConnectionLimits,
    HeadWithBody,
    default_limit,
)
from perdure.server.http.server import HttpServer
from perdure.server.table import build_application

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIST = b"GET /api/v1/rollouts HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /api/v1/changes HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
PATIENCE = 20.0


class Peer:
    """The client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> bytes:
        """Return the next response, which has no body."""
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def status(self) -> int:
        """Return the status of the next response, and read its body too."""
        async with asyncio.timeout(PATIENCE):
            head = await self._reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:-2])
            await self._reader.readexactly(int(fields.get(b"content-length", b"0")))
        return int(head.split()[1])

    async def closed(self) -> bytes:
        """Wait for the server to close the connection. Return what it sent before."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._reader.read()
        except ConnectionError:
            return b""

    async def drip(self, data: bytes) -> None:
        """Send a byte repeatedly until the server has closed the connection."""
        ended = asyncio.ensure_future(self.closed())
        while not ended.done():
            self._writer.write(data)
            await asyncio.wait([ended], timeout=0.02)

    def close(self) -> None:
        self._writer.transport.abort()


class Server:
    def __init__(self, port: int) -> None:
        self._port = port
        self._peers: list[Peer] = []

    async def connect(self, data: bytes = b"") -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self._port))
        self._peers.append(peer)
        await peer.send(data)
        return peer

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


@asynccontextmanager
async def serving(**given: Any) -> AsyncIterator[Server]:
    settings = Settings(**given)
    async with InMemoryLightningStore() as store:
        application = build_application(build_app(store, settings))
        async with HttpServer(application, limits=ConnectionLimits.of(settings)) as http:
            server = Server(http.port)
            try:
                yield server
            finally:
                server.close()


class Written:
    """A transport that records which data is written together."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.closed_after: int | None = None

    def write(self, data: bytes) -> None:
        self.parts.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.parts.append(b"".join(parts))

    def close(self) -> None:
        self.closed_after = len(self.parts)

    def is_closing(self) -> bool:
        return self.closed_after is not None


async def test_a_head_is_written_with_its_body_or_in_the_next_turn() -> None:
    loop = asyncio.get_running_loop()
    whole, stream, alone = Written(), Written(), Written()
    response = HeadWithBody(cast(asyncio.Transport, whole), loop)
    for part in (b"head ", b"body ", b"end"):
        response.write(part)
    await asyncio.sleep(0)
    assert whole.parts == [b"head body ", b"end"]
    response = HeadWithBody(cast(asyncio.Transport, stream), loop)
    response.write(b"head")
    await asyncio.sleep(0)
    assert stream.parts == [b"head"]
    response.write(b"event")
    assert stream.parts == [b"head", b"event"]
    response = HeadWithBody(cast(asyncio.Transport, alone), loop)
    response.write(b"head")
    response.close()
    await asyncio.sleep(0)
    assert alone.parts == [b"head"]
    assert alone.closed_after == 1
    gone = Written()
    HeadWithBody(cast(asyncio.Transport, gone), loop).write(b"head")
    gone.close()
    await asyncio.sleep(0)
    assert gone.parts == []


async def test_responses_of_a_connection_come_in_the_order_of_their_requests() -> None:
    async with serving() as server:
        peer = await server.connect(HEALTH.replace(b"GET", b"HEAD") + LIST + HEALTH)
        assert (await peer.head()).startswith(b"HTTP/1.1 200 ")
        assert [await peer.status(), await peer.status()] == [200, 200]


async def test_a_response_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Written] = []

    class Watched(HeadWithBody):
        def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
            made.append(written := Written())
            self.real = transport
            super().__init__(cast(asyncio.Transport, written), loop)

        def write(self, data: bytes) -> None:
            super().write(data)
            self.real.write(data)

    monkeypatch.setattr(connections, "HeadWithBody", Watched)
    async with serving() as server:
        assert await (await server.connect(LIST)).status() == 200
    assert [len(each.parts) for each in made] == [1]


async def test_a_head_that_does_not_end_is_closed() -> None:
    async with serving(head_timeout=0.2) as server:
        silent, half, slow = [await server.connect(data) for data in (b"", HALF, HALF)]
        assert [await silent.closed(), await half.closed()] == [b"", b""]
        await slow.drip(b"a")
        again = await server.connect(HEALTH)
        assert await again.status() == 200
        await again.drip(b"G")


async def test_an_idle_connection_is_closed_and_a_stream_is_not() -> None:
    async with serving(head_timeout=0.2, keep_alive_timeout=0.1) as server:
        stream, idle = await server.connect(STREAM), await server.connect(HEALTH)
        assert await idle.status() == 200
        await idle.closed()
        open_still = asyncio.ensure_future(stream.closed())
        await (await server.connect(HALF)).closed()
        assert not open_still.done()
        open_still.cancel()


async def test_a_body_that_nobody_reads_or_that_does_not_end_is_bounded() -> None:
    head = b" /api/v1/rollouts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    head += b"Content-Type: application/json\r\n\r\n"
    async with serving(head_timeout=0.2, body_timeout=0.2) as server:
        unread = await server.connect(b"GET" + head)
        assert await unread.status() == 200
        await unread.drip(b"a")
        slow = await server.connect(b"POST" + head)
        assert await slow.status() == 408
        await slow.drip(b"a")


async def test_a_head_has_a_size() -> None:
    async with serving() as server:
        large = await server.connect(HALF)
        await large.send(b"a" * (MAX_HEAD_BYTES - len(HALF)))
        # Send nothing after the byte too many, because unread bytes would reset the connection.
        await large.send(b"a")
        assert (await large.closed()).startswith(b"HTTP/1.1 431 ")


async def test_beyond_the_limit_the_one_idle_longest_is_closed() -> None:
    async with serving(max_connections=4) as server:
        stream = await server.connect(STREAM)
        oldest, used, half = [await server.connect(data) for data in (b"", HEALTH, HALF)]
        assert await used.status() == 200
        newest = await server.connect(LIST)
        await oldest.closed()
        assert await newest.status() == 200
        await used.send(LIST)
        assert await used.status() == 200
        # Both connections were used after the half head arrived.
        assert await (await server.connect(LIST)).status() == 200
        await half.closed()
        open_still = asyncio.ensure_future(stream.closed())
        assert await (await server.connect(LIST)).status() == 200
        await newest.closed()
        assert not open_still.done()
        open_still.cancel()


async def test_health_checks_have_a_reserve() -> None:
    async with serving(max_connections=2) as server:
        streams = [await server.connect(STREAM) for _ in range(2)]
        for stream in streams:
            await stream._reader.readuntil(b"\r\n\r\n")
        probe = await server.connect(HEALTH)
        assert await probe.status() == 200
        other = await server.connect(LIST)
        assert await other.status() == 503
        await other.closed()
        idle = [await server.connect() for _ in range(RESERVE + 5)]
        await idle[0].closed()
        late = await server.connect()
        await late.send(HEALTH)
        assert await late.status() == 200
        streams[0].close()
        streams[1].close()


def test_the_probes_are_the_public_paths() -> None:
    assert PROBES == PUBLIC


def test_the_limit_comes_from_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_files(soft: int) -> int:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
        return default_limit()

    assert with_files(1024) == 1024 - OTHER_FILES - RESERVE
    assert with_files(256) == 128
    assert with_files(resource.RLIM_INFINITY) == with_files(1 << 30) == 65_536
    assert ConnectionLimits.of(Settings(max_connections=7)).max_connections == 7


def test_a_limit_beyond_the_open_files_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert ConnectionLimits.of(Settings(max_connections=880)).max_connections == 880
    assert not caplog.messages
    assert ConnectionLimits.of(Settings(max_connections=10_000)).max_connections == 10_000
    assert "allow 880 connections" in caplog.text
