"""Server-sent events: an answer that lasts until its source ends, its caller leaves or the server stops."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.kernel.errors import PerdureError, TooManyRequests
from perdure.server.http.gate import credentials_from
from perdure.server.http.routes import Call

logger = logging.getLogger(__name__)

MEDIA_TYPE = "text/event-stream"
HEARTBEAT_SECONDS = 5.0
SEND_SECONDS = 60.0
HELLO = b"retry: 2000\n: the feed begins\n\n"
HEARTBEAT = b": still here\n\n"

OnDisconnect = Callable[[], Awaitable[None]]
"""What is done when the caller has hung up."""


class Source(Protocol):
    """Where a feed comes from."""

    async def next(self) -> bytes | None:
        """What is to be sent next, once there is something; None after the last."""
        ...

    def close(self) -> None: ...


class Feed(StreamingResponse):
    """Sends what its source gives until that ends, the caller leaves or loses its right, or the server ends.

    `feeds` counts how many each actor has open, which are never more than `limit`.
    """

    greeting = HELLO
    heartbeat = HEARTBEAT

    def __init__(
        self,
        call: Call,
        source: Source,
        feeds: Counter[str],
        limit: int,
        *,
        hello: bytes = b"",
        headers: Mapping[str, str] | None = None,
        left: OnDisconnect | None = None,
    ) -> None:
        super().__init__((), media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no", **(headers or {})})
        self._call = call
        self._source = source
        self._feeds = feeds
        self._hello = self.greeting + hello
        self._left = left
        self._actor = call.caller.actor
        self._sending: float | None = None
        """Since when something is under way to the reader."""
        self._silent = False
        if feeds[self._actor] >= limit:
            source.close()
            raise TooManyRequests(f"{limit} feeds are open already")
        feeds[self._actor] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if not await self._until_over(receive, send):
                await send({"type": "http.response.body", "body": b""})
            elif self._left is not None and not self._call.stopping.is_set():
                await self._left()
        finally:
            self._source.close()
            self._feeds[self._actor] -= 1
            if not self._feeds[self._actor]:
                del self._feeds[self._actor]

    async def _until_over(self, receive: Receive, send: Send) -> bool:
        """Send until there is a reason to end; says whether that is that the caller is gone."""
        left = asyncio.ensure_future(hang_up(receive))
        ends = (left, asyncio.ensure_future(self._send_all(send)), asyncio.ensure_future(self._watch(send)))
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return left in done
        except TimeoutError:
            logger.info("a feed of %s ends: nothing was taken for %s s", self._actor, SEND_SECONDS)
            return True
        except PerdureError as error:
            # Whoever reads asks again, and is told then.
            logger.warning("a feed of %s ends: %s: %s", self._actor, error.code, error.message)
            return False
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        data: bytes | None = self._hello
        while data is not None:
            self._sending = time.monotonic()
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._sending, self._silent = None, False
            data = await self._source.next()

    async def _watch(self, send: Send) -> None:
        """What is no matter of each event: signs of life, slow readers, lost rights, and the server's end."""
        while not await self._stops_within(min(HEARTBEAT_SECONDS, SEND_SECONDS)):
            if self._sending is not None:
                # A reader that takes nothing for long is given up.
                if time.monotonic() - self._sending >= SEND_SECONDS:
                    raise TimeoutError
            elif self._silent:
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": self.heartbeat, "more_body": True})
            self._silent = True
            if not await self._is_welcome():
                return

    async def _stops_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._call.stopping.wait()
        except TimeoutError:
            return False

    async def _is_welcome(self) -> bool:
        """A token may end while its feed lasts."""
        try:
            await self._call.app.admit(*credentials_from(self._call.request.headers.get))
        except PerdureError as error:
            logger.info("a feed of %s ends: %s", self._actor, error.message)
            return False
        return True


async def hang_up(receive: Receive) -> Any:
    """Wait until the caller has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
