"""A door before PostgreSQL that can lose what goes through it."""

import asyncio
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

from perdure.kernel.background import Background

COMMIT = b"COMMIT\0"

Mode = Literal["pass", "lose commit", "lose answer", "swallow"]


class LossyProxy:
    """Passes bytes on, in a thread of its own.

    It can cut a connection just before a COMMIT or just before its answer, or go silent.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._thread = Background("lossy-proxy")
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.mode: Mode = "pass"
        self.lost = 0

    @property
    def url(self) -> str:
        """The server's URL, by way of this door."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        account = self._target.netloc.rpartition("@")[0]
        return urlunsplit(self._target._replace(netloc=f"{account}@127.0.0.1:{port}"))

    async def __aenter__(self) -> Self:
        await self._thread.ask(self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._thread.ask(self._close)
        self._thread.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        above, below = await asyncio.open_connection(self._target.hostname, self._target.port)
        cut = asyncio.Event()
        pumps = [
            asyncio.create_task(self._up(reader, below, cut)),
            asyncio.create_task(self._down(above, writer, cut)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, below):
                end.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, below: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        while chunk := await reader.read(1 << 16):
            if COMMIT in chunk and self.mode in ("lose commit", "lose answer"):
                cut.set()
                if self._is_lost("lose commit"):
                    return
            if self.mode != "swallow":
                below.write(chunk)

    async def _down(self, above: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        while chunk := await above.read(1 << 16):
            if cut.is_set() and self._is_lost("lose answer"):
                return
            if self.mode != "swallow":
                writer.write(chunk)

    def _is_lost(self, mode: Mode) -> bool:
        """Whether this is the one loss that was asked for."""
        if self.mode != mode:
            return False
        self.mode = "pass"
        self.lost += 1
        return True
