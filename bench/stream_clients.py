"""Many readers of one stream in their own process, which store the bytes and check them later.

Run as `python -m bench.stream_clients HOST PORT PATH CLIENTS EVENTS GO`. After every client has the first
bytes of its response, a word written to the named pipe GO starts the run's events. The program prints the
seconds from there to the last byte, as `{"seconds": number}`, after it has checked that every client got
every event, in order and once.
"""

import asyncio
import json
import re
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path

HEAD_END = b"\r\n\r\n"
EVENT = re.compile(rb"id: \d+-(\d+)\nevent: custom\ndata: ")
SHOWN = 300
AT_ONCE = 100
"""Number of clients that connect at once, because a server accepts only a few at a time."""


class Reader(asyncio.Protocol):
    """Reads one stream to its end."""

    def __init__(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.connected: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.last = 0.0
        self._request = request
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.last = time.perf_counter()
        self._parts.append(data)
        if not self.connected.done():
            self.connected.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self.connected, self.ended):
            if not future.done():
                future.set_result(None)

    def check(self, events: int) -> None:
        """Check that every event arrived, in order and once."""
        head, _, body = b"".join(self._parts).partition(HEAD_END)
        if not head.startswith(b"HTTP/1.1 200") or b"chunked" not in head.lower():
            raise RuntimeError(f"a stream was refused: {head[:SHOWN]!r}")
        numbers = [int(number) for number in EVENT.findall(unchunked(body))]
        if len(numbers) != events or any(b - a != 1 for a, b in pairwise(numbers)):
            raise RuntimeError(f"a client got {len(numbers)} of {events} events")


def unchunked(body: bytes) -> bytes:
    """Return the content of a chunked body."""
    parts, place = [], 0
    while place < len(body):
        line_end = body.index(b"\r\n", place)
        size = int(body[place:line_end], 16)
        parts.append(body[line_end + 2 : line_end + 2 + size])
        place = line_end + 2 + size + 2
    return b"".join(parts)


async def listen(host: str, port: int, path: str, clients: int, events: int, go: Path) -> float:
    request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    readers: list[Reader] = []
    while len(readers) < clients:
        count = min(AT_ONCE, clients - len(readers))
        made = await asyncio.gather(
            *(loop.create_connection(lambda: Reader(request), host, port) for _ in range(count))
        )
        readers += [reader for _, reader in made]
    await asyncio.gather(*(reader.connected for reader in readers))
    started = time.perf_counter()
    await asyncio.to_thread(go.write_bytes, b"go")
    await asyncio.gather(*(reader.ended for reader in readers))
    for reader in readers:
        reader.check(events)
    return max(reader.last for reader in readers) - started


def allow_files() -> None:
    """Raise the limit of open files of this process and its children to the system's maximum."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    allow_files()
    host, port, path, clients, events, go = sys.argv[1:]
    seconds = asyncio.run(listen(host, int(port), path, int(clients), int(events), Path(go)))
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
