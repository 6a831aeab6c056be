"""A JSON response that may take long: blank lines before it keep the connection alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.kernel.errors import PerdureError, StorageClosed
from perdure.server.http.bodies import encode
from perdure.server.http.disconnect import CallerWatch, OnDisconnect
from perdure.server.http.problems import NATIVE, internal_error, public_error
from perdure.server.http.routes import STOPS, Call, ServerProtocol

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/json"
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
        super().__init__((), media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no", **(headers or {})})
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
        media_type = answer.media_type or MEDIA_TYPE
        await self._send(send, bytes(answer.body), status=answer.status_code, media_type=media_type)

    async def _send(
        self, send: Send, data: bytes, *, more: bool = False, status: int = 200, media_type: str = MEDIA_TYPE
    ) -> None:
        if not self._started:
            self._started = True
            self.headers["Content-Type"] = media_type
            await send({"type": "http.response.start", "status": status, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": more})
