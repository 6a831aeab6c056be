"""Responses that may take long: server-sent events, delayed JSON, and detection of disconnected clients.

Server-sent events last until their source ends or their client disconnects. Blank lines before delayed JSON
keep its connection alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.kernel.errors import Conflict, NotFound, PerdureError, StorageClosed, TooManyRequests
from perdure.server.http.bodies import NATIVE, encode, internal_error, public_error
from perdure.server.http.routes import STOPS, Call, ServerProtocol
from perdure.streams.model import Burst, Encoding, StreamEvent
from perdure.streams.service import Follower
from perdure.threads.service import Threads

# --- disconnected clients ---------------------------------------------------------------------------------


WATCH_SECONDS = 0.25
"""Duration of a request after which its client is watched."""

OnDisconnect = Callable[[], Awaitable[None]]
"""Called by a long response when its client has disconnected."""


async def until_disconnect(receive: Receive) -> Any:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


class CallerWatch:
    """Waits for the work of a request, until its client disconnects or the server stops.

    Both are watched only after a moment, because most requests are answered before that. Use `at_once` if no
    other caller could use the result, as with a claim.
    """

    __slots__ = ("_disconnected", "_moment", "_receive", "_stopping")

    def __init__(self, receive: Receive, stopping: asyncio.Future[None], *, at_once: bool = False) -> None:
        self._receive = receive
        self._stopping = stopping
        self._moment = 0.0 if at_once else WATCH_SECONDS
        self._disconnected: asyncio.Task[Any] | None = None

    async def wait(self, work: asyncio.Future[Any], seconds: float | None = None) -> bool:
        """Wait until the work or the request has ended. Return False if neither has within `seconds`."""
        if self._disconnected is None:
            if self._moment:
                done, _ = await asyncio.wait((work,), timeout=self._moment)
                if done:
                    return True
            self._disconnected = asyncio.ensure_future(until_disconnect(self._receive))
        ends = (work, self._disconnected, self._stopping)
        done, _ = await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    @property
    def has_left(self) -> bool:
        """Whether the client has disconnected."""
        return self._disconnected is not None and self._disconnected.done()

    async def end(self, *tasks: asyncio.Future[Any]) -> None:
        """Cancel the work and the watch, and wait for both."""
        watch = () if self._disconnected is None else (self._disconnected,)
        left = [task for task in (*tasks, *watch) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)


class DisconnectWatch:
    """Cancels the task of a request when its client disconnects.

    It starts after a moment, because most requests are answered before that.
    """

    __slots__ = ("_receive", "_task", "_timer", "_watching", "left")

    def __init__(self, receive: Receive) -> None:
        self.left = False
        self._receive = receive
        self._task = asyncio.current_task()
        self._watching: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._begin)

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await until_disconnect(self._receive)
        self.left = True
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()


def cancel_on_disconnect(threads: Threads, run_id: str, wanted: bool) -> OnDisconnect | None:
    """Return a function that cancels a run when its client disconnects, if that is wanted."""
    return partial(_cancel, threads, run_id) if wanted else None


async def _cancel(threads: Threads, run_id: str) -> None:
    # A run that has ended in the meantime needs no cancellation.
    with contextlib.suppress(Conflict, NotFound):
        await threads.cancel_run(run_id)


# --- delayed JSON -----------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

JSON_TYPE = "application/json"
ALIVE_SECONDS = 5.0


class DelayedJson(StreamingResponse):
    """Sends the result of `work`. An error after the first blank line has the status 200."""

    protocol: ServerProtocol = NATIVE

    def __init__(
        self,
        call: Call,
        work: Coroutine[Any, Any, Any],
        *,
        headers: Mapping[str, str] | None = None,
        on_disconnect: OnDisconnect | None = None,
    ) -> None:
        super().__init__((), media_type=JSON_TYPE, headers={"X-Accel-Buffering": "no", **(headers or {})})
        self._call = call
        self._work = work
        self._on_disconnect = on_disconnect
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._work)
        caller = CallerWatch(receive, self._call.stopping.future)
        try:
            while not await caller.wait(work, ALIVE_SECONDS):
                await self._send(send, b"\n", more=True)
            if work.done():
                await self._send_result(send, work)
            elif not caller.has_left:
                await self.stopped(send)
            elif self._on_disconnect is not None:
                await self._on_disconnect()
        finally:
            await caller.end(work)

    async def stopped(self, send: Send) -> None:
        """Send an error, because the server stops before the work is done."""
        await self._refuse(send, StorageClosed(STOPS))

    async def _send_result(self, send: Send, work: asyncio.Future[Any]) -> None:
        try:
            await self._send(send, encode(work.result()))
        except PerdureError as error:
            await self._refuse(send, public_error(error, self._call.request_id))
        except Exception:
            # Details belong in the log, not in the response.
            logger.exception("request %s failed while it waited", self._call.request_id)
            await self._refuse(send, internal_error(self._call.request_id))

    async def _refuse(self, send: Send, error: PerdureError) -> None:
        answer = self.protocol.refuse(error, self._call.request_id, self._call.request)
        media_type = answer.media_type or JSON_TYPE
        await self._send(send, bytes(answer.body), status=answer.status_code, media_type=media_type)

    async def _send(
        self, send: Send, data: bytes, *, more: bool = False, status: int = 200, media_type: str = JSON_TYPE
    ) -> None:
        if not self._started:
            self._started = True
            self.headers["Content-Type"] = media_type
            await send({"type": "http.response.start", "status": status, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": more})


# --- server-sent events -----------------------------------------------------------------------------------


MEDIA_TYPE = "text/event-stream"
HEARTBEAT_SECONDS = 4.5
"""Maximum silence of a stream; clients are promised a comment every 5 s."""
SEND_SECONDS = 60.0
"""A stream ends after its client has read nothing for this time."""
GREETING = b"retry: 2000\n: the feed begins\n\n"
HEARTBEAT = b": still here\n\n"
JOIN_BYTES = 64 << 10
"""Frames up to this size are sent together to a client that is behind."""
BEGINNING = "-1"
"""Event id before the first event of a stream."""

_LINE_ENDS = str.maketrans("\r\n", "  ")


# --- frames -----------------------------------------------------------------------------------------------


def frame(event: str, data: str, id: str | None = None) -> str:
    """Format an event."""
    place = "" if id is None else f"id: {id}\n"
    return f"{place}event: {one_line(event)}\ndata: {one_line(data)}\n\n"


def crlf_frame(event: str, data: str, id: str | None = None) -> str:
    """Format an event, byte for byte as LangGraph's server does."""
    place = "" if id is None else f"id: {id}\r\n"
    return f"event: {one_line(event)}\r\ndata: {one_line(data)}\r\n{place}\r\n"


def one_line(text: str) -> str:
    """Replace line ends by spaces; in JSON, line ends are only between tokens."""
    return text.translate(_LINE_ENDS) if "\n" in text or "\r" in text else text


def encode_events(events: Iterable[StreamEvent]) -> bytes:
    """Encode events of a stream as frames with their ids."""
    return "".join([frame(event.event, event.body, event.id) for event in events]).encode()


# --- the response -----------------------------------------------------------------------------------------


class Source(Protocol):
    """The source of a response's frames."""

    async def next(self) -> bytes | None:
        """Wait for the next bytes and return them; None after the last."""
        ...

    def close(self) -> None: ...


class EventStreamResponse(StreamingResponse):
    """Sends until its source ends, the client disconnects or loses access, or the server stops.

    `open_streams` counts the open responses of each actor, at most `limit`. `resume` builds the last bytes to
    send if the server stops.
    """

    greeting = GREETING
    heartbeat = HEARTBEAT

    def __init__(
        self,
        call: Call,
        source: Source,
        open_streams: Counter[str],
        limit: int,
        *,
        first: bytes = b"",
        resume: Callable[[], bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        on_disconnect: OnDisconnect | None = None,
    ) -> None:
        super().__init__((), media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no", **(headers or {})})
        self._call = call
        self._source = source
        self._open_streams = open_streams
        self._first = self.greeting + first
        self._resume = resume
        self._on_disconnect = on_disconnect
        self._actor = call.caller.actor
        self._sending_since: float | None = None
        self._last_sent = time.monotonic()
        if open_streams[self._actor] >= limit:
            source.close()
            raise TooManyRequests(f"{limit} feeds are open already")
        open_streams[self._actor] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if not await self._send_until_over(receive, send):
                await send({"type": "http.response.body", "body": self._last()})
            elif self._on_disconnect is not None and not self._call.stopping.is_set():
                await self._on_disconnect()
        finally:
            self._source.close()
            self._open_streams[self._actor] -= 1
            if not self._open_streams[self._actor]:
                del self._open_streams[self._actor]

    def _last(self) -> bytes:
        """Return the bytes to resume from, if the server stops and everything read has been sent."""
        stops = self._call.stopping.is_set() and self._sending_since is None
        return self._resume() if stops and self._resume is not None else b""

    async def _send_until_over(self, receive: Receive, send: Send) -> bool:
        """Send until there is a reason to end. Return whether the client has disconnected."""
        tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(self._send_all(send))]
        disconnected: asyncio.Task[Any] | None = None
        try:
            # Many streams end before watching is needed.
            done, _ = await asyncio.wait(tasks, timeout=WATCH_SECONDS)
            if not done:
                disconnected = asyncio.ensure_future(until_disconnect(receive))
                tasks += [disconnected, asyncio.ensure_future(self._watch(send))]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return disconnected in done
        except TimeoutError:
            logger.info("a stream of %s ends: its client read nothing for %s s", self._actor, SEND_SECONDS)
            return True
        except PerdureError as error:
            # The client reconnects and gets the error then.
            logger.warning("a stream of %s ends: %s: %s", self._actor, error.code, error.message)
            return False
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        data: bytes | None = self._first
        while data is not None:
            self._sending_since = time.monotonic()
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._sending_since, self._last_sent = None, time.monotonic()
            data = await self._source.next()

    async def _watch(self, send: Send) -> None:
        """Send heartbeats. Return for a revoked token or a stopping server, or raise TimeoutError."""
        while not await self._stops_within(self._until_heartbeat()):
            if self._sending_since is not None:
                if time.monotonic() - self._sending_since >= SEND_SECONDS:
                    raise TimeoutError
            elif self._until_heartbeat() <= 0:
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": self.heartbeat, "more_body": True})
                self._last_sent = time.monotonic()
            if not await self._still_admitted():
                return

    def _until_heartbeat(self) -> float:
        """Return the seconds until the next heartbeat; while sending hangs, until the next check."""
        if self._sending_since is not None:
            return min(HEARTBEAT_SECONDS, SEND_SECONDS)
        return self._last_sent + min(HEARTBEAT_SECONDS, SEND_SECONDS) - time.monotonic()

    async def _stops_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._call.stopping.wait()
        except TimeoutError:
            return False

    async def _still_admitted(self) -> bool:
        """Return whether the caller is still admitted."""
        if self._call.readmit is None:
            return True
        try:
            await self._call.readmit()
        except PerdureError as error:
            logger.info("a stream of %s ends: %s", self._actor, error.message)
            return False
        return True


# --- streams of events ------------------------------------------------------------------------------------


class FollowerSource:
    """The events of a follower in one encoding, then `last`."""

    def __init__(self, follower: Follower, encoding: Encoding, last: bytes = b"") -> None:
        self._follower = follower
        self._encoding = encoding
        self._last = last
        self._ended = False

    async def next(self) -> bytes | None:
        data = b""
        while not data and not self._ended:
            burst = await self._follower.next()
            self._ended = burst is None
            data = self._last if burst is None else self._joined(burst)
        return data or None

    def _joined(self, burst: Burst) -> bytes:
        data = burst.encoded(self._encoding)
        while len(data) < JOIN_BYTES and (more := self._follower.take()) is not None:
            data += more.encoded(self._encoding)
        return data

    def close(self) -> None:
        self._follower.close()


async def follow_events(
    call: Call,
    follow: Callable[[str | None], Awaitable[Follower]],
    encoding: Encoding,
    after: str | None,
    *,
    response: type[EventStreamResponse] = EventStreamResponse,
    last: bytes = b"",
    names_start: bool = False,
    headers: Mapping[str, str] | None = None,
    on_disconnect: OnDisconnect | None = None,
) -> Response:
    """Stream all events after an id; None streams events from now on.

    `names_start` sends the id to resume from before the first event and when the server stops.
    """
    follower = await follow(after)
    if call.request.method == "HEAD":
        follower.close()
        return Response(media_type=MEDIA_TYPE)
    if after is None:
        await _started(follower)
    place = partial(_encode_place, follower)
    first = place() if names_start and after is None else b""
    return response(
        call,
        FollowerSource(follower, encoding, last),
        call.app.streams,
        call.app.settings.max_streams,
        first=first,
        resume=place if names_start else None,
        headers=headers,
        on_disconnect=on_disconnect,
    )


def _encode_place(follower: Follower) -> bytes:
    """Encode the id to resume from as a frame without an event."""
    return b"id: 0-%d\n\n" % (follower.place or 0)


async def _started(follower: Follower) -> None:
    try:
        await follower.started()
    except BaseException:
        follower.close()
        raise
