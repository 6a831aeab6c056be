"""Waits and streams of threads and runs over HTTP, which tolerate a server that is away for a while.

Streams are server-sent events, and resume where a connection was lost.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from perdure.client.outage import LONGEST_PAUSE, OnAway, Outage
from perdure.client.session import Query, error_from
from perdure.client.transport import HttpTransport, Sender, build_path, decode_answer, key_header
from perdure.kernel.checks import check_timeout
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import PerdureError
from perdure.messaging.service import Messaging
from perdure.service.endpoints import Endpoint
from perdure.streams.model import Burst, StreamEvent, parse_seq
from perdure.threads.records import Run, RunEnd
from perdure.threads.service import BEGINNING, Threads

if TYPE_CHECKING:
    import aiohttp

# --- server-sent events -----------------------------------------------------------------------------------


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


# --- waits and streams ------------------------------------------------------------------------------------


T = TypeVar("T")
Arguments = dict[str, Any]

WAIT_SECONDS = 25.0
"""Maximum seconds of one request that waits for the end of a run; another request follows."""
_END: Any = RunEnd | None
_PROBLEM = b'{"type":"urn:perdure:error:'


class ThreadSenders:
    """Sends the calls that wait or stream; a server may be away for `patience` seconds.

    `on_away` is called once per outage of the server.
    """

    def __init__(self, patience: float, on_away: OnAway | None = None) -> None:
        self._patience = patience
        self._on_away = on_away

    def _new_outage(self, transport: HttpTransport) -> Outage:
        return Outage(transport.session, self._patience, self._on_away)

    def by_method(self) -> dict[Callable[..., Any], Sender]:
        """Return the senders by method."""
        return {
            Threads.cancel_run: cancel_run,
            Threads.wait: self.wait,
            Threads.join_run: self.join_run,
            Threads.stream: self.stream,
            Threads.stream_run: partial(self.resume, source="run_id", default=BEGINNING),
            Threads.stream_thread: partial(self.resume, source="thread_id", default=None),
            Messaging.ask: self.wait,
            Messaging.stream: self.stream,
        }

    # --- waits --------------------------------------------------------------------------------------------

    async def wait(self, transport: HttpTransport, endpoint: Endpoint, arguments: Arguments) -> Any:
        """Create a run or send a message, and wait for the end."""
        options: Any = {
            "body": transport.encode_call(endpoint, arguments),
            "headers": key_header(arguments),
        }
        path = build_path(endpoint, arguments)
        kind = endpoint.shape.answer
        return await self._patiently(transport, partial(_awaited, transport, "POST", path, kind, **options))

    async def join_run(self, transport: HttpTransport, endpoint: Endpoint, arguments: Arguments) -> RunEnd:
        """Wait for the end of a run, with as many requests as necessary."""
        timeout = arguments.get("timeout")
        check_timeout(timeout)
        path = build_path(endpoint, arguments)
        clock = asyncio.get_running_loop().time
        deadline = math.inf if timeout is None else clock() + max(timeout, 0)
        while True:
            seconds = min(WAIT_SECONDS, max(deadline - clock(), 0))
            asking = partial(_awaited, transport, "GET", path, _END, query=[("timeout", str(seconds))])
            end: RunEnd | None = await self._patiently(transport, asking)
            if end is not None:
                return end
            if clock() >= deadline:
                raise TimeoutError(f"run {arguments['run_id']} has not ended within {timeout} s")

    async def _patiently(self, transport: HttpTransport, action: Callable[[], Awaitable[T]]) -> T:
        """Retry an action while its error may be temporary."""
        clock = asyncio.get_running_loop().time
        outage = self._new_outage(transport)
        while True:
            started = clock()
            try:
                return await action()
            except PerdureError as error:
                # An error after a long wait starts a new outage; an immediate one continues the outage.
                if clock() - started > LONGEST_PAUSE:
                    outage.end()
                await outage.pause(error)

    # --- streams ------------------------------------------------------------------------------------------

    def stream(
        self, transport: HttpTransport, endpoint: Endpoint, arguments: Arguments
    ) -> AsyncIterator[Burst]:
        """Create a run and stream its events. After a failure, resume the stream that the response named."""
        key, body = key_header(arguments), transport.encode_call(endpoint, arguments)
        place = ""

        @asynccontextmanager
        async def opening(headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
            nonlocal place
            method, path = ("GET", place) if place else ("POST", build_path(endpoint, arguments))
            sent = {**headers, **({} if place else key)}
            async with transport.session.opened(
                method, path, body=None if place else body, headers=sent
            ) as response:
                place = response.headers.get("Location", place)
                yield response

        return Resumed("", BEGINNING, self._new_outage(transport)).read(opening)

    def resume(
        self,
        transport: HttpTransport,
        endpoint: Endpoint,
        arguments: Arguments,
        *,
        source: str,
        default: str | None,
    ) -> AsyncIterator[Burst]:
        """Stream events after the event `after`, over as many connections as necessary."""
        path = build_path(endpoint, arguments)

        @asynccontextmanager
        async def opening(headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
            query = () if headers else (("since", "now"),)
            async with transport.session.opened("GET", path, query=query, headers=headers) as response:
                yield response

        after = arguments.get("after", default)
        return Resumed(arguments[source], after, self._new_outage(transport)).read(opening)


async def cancel_run(transport: HttpTransport, endpoint: Endpoint, arguments: Arguments) -> Run:
    """Cancel a run. With `wait`, the request does not delay others."""
    waits = bool(arguments.get("wait"))
    run: Run = await transport.request(endpoint, arguments, timeout=0 if waits else None, long_poll=waits)
    return run


async def _awaited(
    transport: HttpTransport,
    method: str,
    path: str,
    kind: Any,
    *,
    body: bytes | None = None,
    query: Query = (),
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Wait for an end. An error during the wait is in the body."""
    async with transport.session.opened(method, path, body=body, query=query, headers=headers) as response:
        data = (await response.read()).lstrip()
    if data.startswith(_PROBLEM):
        raise error_from(503, data)
    return decode_answer(kind, data)
