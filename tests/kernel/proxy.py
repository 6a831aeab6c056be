"""A TCP proxy between the driver and the server, which simulates network faults."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from perdure.kernel.background import Background

COMMIT = b"COMMIT\0"
CHUNK = 65536
TURNS_OF_ACCEPTING = 10

SSL_REQUEST = (80877103).to_bytes(4, "big")

Trouble = Literal[
    "none", "silence", "cut before commit", "silence at commit", "lose answer", "refuse", "starting up"
]


class Proxy:
    """Forwards bytes, and counts connections and commits. `trouble` is the next fault:

    - `silence`: connections stay open, but no bytes pass until the fault ends;
    - `refuse`: new connections are closed at once;
    - `starting up`: new connections get the error that the server is starting up, and are closed;
    - `cut before commit`: the connection is closed instead of sending the next commit, once;
    - `silence at commit`: silence starts with the next commit, which is not sent;
    - `lose answer`: the next commit is sent, and the connection is closed when the server answers, once.
    """

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._thread = Background("proxy")
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.trouble: Trouble = "none"
        self.commits = 0
        self.connections = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def before(cls, url: str) -> AsyncIterator[Proxy]:
        """Run a proxy in front of the server of `url`, in a separate thread."""
        proxy = cls(url)
        await proxy._thread.ask(proxy._start)
        try:
            yield proxy
        finally:
            await proxy._thread.ask(proxy._stop)
            proxy._thread.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        # A new connection needs a few turns of the loop before it is in the set of links.
        for _ in range(TURNS_OF_ACCEPTING):
            await asyncio.sleep(0)
        await self._cut()

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        credentials = self._url.netloc.rpartition("@")[0]
        return urlunsplit(self._url._replace(netloc=f"{credentials}@127.0.0.1:{port}"))

    async def cut(self) -> None:
        """Close every connection."""
        await self._thread.ask(self._cut)

    async def _cut(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = asyncio.ensure_future(self._link(reader, writer))
        self._links.add(link)
        # A link that is cancelled before its first step runs no code.
        link.add_done_callback(lambda _: writer.transport.abort())
        link.add_done_callback(self._links.discard)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.trouble == "refuse":
            return
        with contextlib.suppress(OSError, EOFError):
            if self.trouble == "starting up":
                await _put_off(reader, writer)
            else:
                await self._join(reader, writer)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening = asyncio.ensure_future(asyncio.open_connection(self._url.hostname, self._url.port))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_abort)
            raise
        server_reader, server_writer = opening.result()
        answered = asyncio.Event()
        ways = [
            asyncio.create_task(self._ask(reader, server_writer, answered)),
            asyncio.create_task(self._answer(server_reader, writer, answered)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Abort first: a link that is cancelled while it ends continues only to its next await.
            server_writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        while data := await reader.read(CHUNK):
            if COMMIT in data:
                self.commits += 1
                if self.trouble == "cut before commit":
                    self.trouble = "none"
                    return
                if self.trouble == "silence at commit":
                    self.trouble = "silence"
                if self.trouble == "lose answer":
                    self.trouble = "none"
                    lost.set()
            await self._while_silent()
            writer.write(data)
            await writer.drain()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        while data := await reader.read(CHUNK):
            if lost.is_set():
                return
            await self._while_silent()
            writer.write(data)
            await writer.drain()

    async def _while_silent(self) -> None:
        while self.trouble == "silence":  # noqa: ASYNC110 - the test says when it is over
            await asyncio.sleep(0.01)


def _abort(opening: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()


async def _put_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a client as PostgreSQL does during recovery."""
    while True:
        length = int.from_bytes(await reader.readexactly(4), "big")
        if await reader.readexactly(length - 4) != SSL_REQUEST:
            break
        writer.write(b"N")
    fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
    writer.write(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
    await writer.drain()
