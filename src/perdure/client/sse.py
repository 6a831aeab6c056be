"""Parsing of server-sent events, and streams that resume where a connection was lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.client.outage import Outage
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import PerdureError
from perdure.streams.model import Burst, StreamEvent, parse_seq

if TYPE_CHECKING:
    import aiohttp

THE_END = "that was all"

Opening = Callable[[Mapping[str, str]], AbstractAsyncContextManager["aiohttp.ClientResponse"]]
"""Opens the stream with these headers."""


class Frame(NamedTuple):
    """One block of a stream: an event, or a comment."""

    id: str
    event: str
    data: str
    comment: str


class Parser:
    """Converts bytes into complete blocks."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        return [_frame(block.decode()) for block in blocks]


def _frame(block: str) -> Frame:
    fields = {"id": "", "event": "", "data": "", "": ""}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        fields[name] = value.removeprefix(" ")
    return Frame(fields["id"], fields["event"], fields["data"], fields[""])


class Resumed:
    """The events of one stream over any number of connections, without gaps and duplicates."""

    def __init__(self, source: str, after: str | None, outage: Outage) -> None:
        self._source = source
        self._after = after
        self._attempt = 0
        self._last = 0 if after is None else parse_seq(after)
        self._outage = outage
        self._over = False

    async def read(self, opening: Opening) -> AsyncIterator[Burst]:
        """Yield events in bursts until the stream itself ends."""
        while not self._over:
            try:
                async with aclosing(self._once(opening)) as bursts:
                    async for burst in bursts:
                        self._outage.end()
                        if burst:
                            yield Burst(burst, burst[0].seq - 1, burst[-1].seq)
            except PerdureError as error:
                await self._outage.pause(error)
            else:
                if not self._over:
                    await self._outage.reconnect()

    async def _once(self, opening: Opening) -> AsyncGenerator[Sequence[StreamEvent]]:
        headers = {} if self._after is None else {"Last-Event-ID": self._after}
        parser = Parser()
        async with opening(headers) as response:
            async for data in response.content.iter_any():
                frames = parser.feed(data)
                yield self._events(frames)

    def _events(self, frames: Sequence[Frame]) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        for frame in frames:
            if frame.comment == THE_END:
                self._over = True
            if frame.id:
                self._take(frame, events)
        return events

    def _take(self, frame: Frame, events: list[StreamEvent]) -> None:
        ms, _, number = frame.id.partition("-")
        seq = int(number)
        self._after = frame.id
        if not frame.event or seq <= self._last:
            return
        self._last = seq
        if frame.event == "metadata":
            self._note(frame.data)
        events.append(StreamEvent(seq, int(ms), self._source, self._attempt, frame.event, frame.data))

    def _note(self, data: str) -> None:
        """Read the run and the attempt from the first event of an attempt."""
        metadata = decode_json(data)
        if isinstance(metadata, dict):
            self._source = str(metadata.get("run_id", self._source))
            attempt: Any = metadata.get("attempt")
            self._attempt = attempt if isinstance(attempt, int) else self._attempt
