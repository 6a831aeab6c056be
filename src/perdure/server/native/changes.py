"""The feed of changes as server-sent events. A change is a hint: clients read the object again."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from perdure.kernel.changes import changes_from
from perdure.kernel.signals.port import Stream
from perdure.rollouts.overview import Overview
from perdure.server.http.bodies import encode
from perdure.server.http.long_responses import MEDIA_TYPE, EventStreamResponse, frame
from perdure.server.http.routes import Call
from perdure.service.callers import ADMIN, allows

FEEDS_AN_ACTOR = 32
KEPT_CHANGES = 1000
"""Maximum changes kept for a slow reader; beyond that it must reload everything."""
JOIN_SECONDS = 0.05
"""Changes within this time are sent together."""
RESYNC = frame("resync", "{}").encode()


async def follow_changes(call: Call) -> Response:
    overview = Overview(call.services.storage)
    if call.request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)
    stream = await overview.changes(
        call.caller.namespace, KEPT_CHANGES, system=allows(call.caller.scopes, ADMIN)
    )
    return EventStreamResponse(call, _Changes(stream), call.app.feeds, FEEDS_AN_ACTOR)


def events_from(keys: list[str] | None) -> bytes:
    """Encode the changes of a stream's keys. None is an overflow, and no keys give no bytes."""
    if keys is None:
        return RESYNC
    return "".join([frame("change", encode(change).decode()) for change in changes_from(keys)]).encode()


class _Changes:
    """Source of changes; changes within a short time are sent together."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._joining = 0.0

    async def next(self) -> bytes:
        await asyncio.sleep(self._joining)
        self._joining = JOIN_SECONDS
        return events_from(await self._stream.next())

    def close(self) -> None:
        self._stream.close()
