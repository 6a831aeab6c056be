"""A loopback connection that is cut after a given number of response bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

CHUNK = 65536


class Cutter:
    """Forwards bytes; `lengths` yields the lengths after which it cuts connections."""

    def __init__(self, port: int, lengths: Iterator[int]) -> None:
        self._behind = port
        self._lengths = lengths
        self._links: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        there, out = await asyncio.open_connection("127.0.0.1", self._behind)
        asking = asyncio.ensure_future(_pass(reader, out, None))
        try:
            await _pass(there, writer, next(self._lengths, None))
        except EOFError:
            self.cuts += 1
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            writer.transport.abort()
            out.transport.abort()
            self._links.discard(task)

    async def close(self) -> None:
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK if left is None else min(CHUNK, max(left, 1))):
            if left is not None and len(data) > left:
                raise EOFError
            left = None if left is None else left - len(data)
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def cut_line(url: str, lengths: Iterator[int]) -> AsyncIterator[Cutter]:
    """Open a cutter in front of the server of `url`."""
    cutter = Cutter(int(url.rpartition(":")[2]), lengths)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    cutter.port = server.sockets[0].getsockname()[1]
    try:
        yield cutter
    finally:
        server.close()
        await cutter.close()
