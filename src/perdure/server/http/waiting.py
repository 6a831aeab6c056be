"""JSON that is long in coming: blank lines before it keep the connection alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.kernel.errors import PerdureError, StorageClosed
from perdure.server.http.bodies import encode
from perdure.server.http.feed import OnDisconnect, hang_up
from perdure.server.http.problems import NATIVE, internal_error
from perdure.server.http.routes import Call, ServerProtocol

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/json"
ALIVE_SECONDS = 5.0


class Waiting(StreamingResponse):
    """Sends what its work gives. An error that comes after the first blank line stands in the body alone."""

    protocol: ServerProtocol = NATIVE

    def __init__(
        self,
        call: Call,
        work: Coroutine[Any, Any, Any],
        *,
        headers: Mapping[str, str] | None = None,
        left: OnDisconnect | None = None,
    ) -> None:
        super().__init__((), media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no", **(headers or {})})
        self._call = call
        self._work = work
        self._left = left
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._work)
        left = asyncio.ensure_future(hang_up(receive))
        stop = asyncio.ensure_future(self._call.stopping.wait())
        try:
            while not await _any_of(work, left, stop):
                await self._send(send, b"\n", more=True)
            if work.done():
                await self._end(send, work)
            elif stop.done():
                await self.stopped(send)
            elif self._left is not None:
                await self._left()
        finally:
            for task in (work, left, stop):
                task.cancel()
            await asyncio.gather(work, left, stop, return_exceptions=True)

    async def stopped(self, send: Send) -> None:
        """The server ends before the work does."""
        await self._refuse(send, StorageClosed("the server stops; ask again"))

    async def _end(self, send: Send, work: asyncio.Future[Any]) -> None:
        try:
            await self._send(send, encode(work.result()))
        except PerdureError as error:
            await self._refuse(send, error)
        except Exception:
            logger.exception("request %s failed while it waited", self._call.request_id)
            await self._refuse(send, internal_error(self._call.request_id))

    async def _refuse(self, send: Send, error: PerdureError) -> None:
        answer = self.protocol.refuse(error, self._call.request_id, self._call.request)
        form = answer.media_type or MEDIA_TYPE
        await self._send(send, bytes(answer.body), status=answer.status_code, form=form)

    async def _send(
        self, send: Send, data: bytes, *, more: bool = False, status: int = 200, form: str = MEDIA_TYPE
    ) -> None:
        if not self._begun:
            self._begun = True
            self.headers["Content-Type"] = form
            await send({"type": "http.response.start", "status": status, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": more})


async def _any_of(*tasks: asyncio.Future[Any]) -> bool:
    """Whether one of them is done before the caller must be shown a sign of life."""
    done, _ = await asyncio.wait(tasks, timeout=ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)
