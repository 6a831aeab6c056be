"""The feed of changes as server-sent events. It is a hint: whoever hears of a change reads again."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.kernel.changes import changes_from
from perdure.kernel.errors import PerdureError, TooManyRequests
from perdure.kernel.signals.port import Stream
from perdure.protocols.http.bodies import encode
from perdure.protocols.http.gate import credentials_from
from perdure.protocols.http.routes import Call
from perdure.protocols.native.handlers import overview_of

logger = logging.getLogger(__name__)

FORM = "text/event-stream"
FEEDS_AN_ACTOR = 32
KEPT_CHANGES = 1000
"""So many changes are kept for a slow reader; beyond that it is told to read everything again."""
HEARTBEAT_SECONDS = 15.0
JOIN_SECONDS = 0.05
"""Changes within this time are sent together."""
SEND_SECONDS = 60.0
HELLO = b"retry: 2000\n: the feed begins\n\n"
HEARTBEAT = b": still here\n\n"
RESYNC = b"event: resync\ndata: {}\n\n"


async def follow_changes(call: Call) -> Response:
    overview = overview_of(call)
    if call.request.method == "HEAD":
        return Response(media_type=FORM)
    stream = await overview.changes(call.caller.namespace, KEPT_CHANGES)
    try:
        return Feed(call, stream)
    except TooManyRequests:
        stream.close()
        raise


def events_from(keys: list[str] | None) -> bytes:
    """What is sent for the keys of a stream: None is an overflow, no keys a sign of life."""
    if keys is None:
        return RESYNC
    events = [b"event: change\ndata: " + encode(change) + b"\n\n" for change in changes_from(keys)]
    return b"".join(events) or HEARTBEAT


class Feed(StreamingResponse):
    """Sends changes until the caller hangs up or loses its right, or the server ends."""

    def __init__(self, call: Call, stream: Stream) -> None:
        super().__init__((), media_type=FORM, headers={"X-Accel-Buffering": "no"})
        self._call = call
        self._stream = stream
        self._checked = time.monotonic()
        self._open = call.app.feeds
        self._actor = call.caller.actor
        if self._open[self._actor] >= FEEDS_AN_ACTOR:
            raise TooManyRequests(f"{FEEDS_AN_ACTOR} feeds are open already")
        self._open[self._actor] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if not await self._until_over(receive, send):
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._stream.close()
            self._open[self._actor] -= 1
            if not self._open[self._actor]:
                del self._open[self._actor]

    async def _until_over(self, receive: Receive, send: Send) -> bool:
        """Send until there is a reason to end; says whether that is that the caller is gone."""
        left = asyncio.ensure_future(_hang_up(receive))
        ends = (left, asyncio.ensure_future(self._send_all(send)), asyncio.ensure_future(self._stop()))
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return left in done
        except TimeoutError:
            logger.info("a feed of %s ends: nothing was taken for %s s", self._actor, SEND_SECONDS)
            return True
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _stop(self) -> None:
        await self._call.stopping.wait()

    async def _send_all(self, send: Send) -> None:
        await _send(send, HELLO)
        while True:
            keys = await self._stream.next(HEARTBEAT_SECONDS)
            if not await self._is_welcome():
                return
            await _send(send, events_from(keys))
            await asyncio.sleep(JOIN_SECONDS)

    async def _is_welcome(self) -> bool:
        """A token may end while its feed lasts."""
        if time.monotonic() - self._checked < HEARTBEAT_SECONDS:
            return True
        self._checked = time.monotonic()
        try:
            await self._call.app.admit(*credentials_from(self._call.request.headers.get))
        except PerdureError as error:
            logger.info("a feed of %s ends: %s", self._actor, error.message)
            return False
        return True


async def _send(send: Send, data: bytes) -> None:
    """A reader that takes nothing for long is given up."""
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _hang_up(receive: Receive) -> Any:
    while (await receive())["type"] != "http.disconnect":
        pass
