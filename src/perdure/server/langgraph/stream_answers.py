"""Answers of the LangGraph protocol that last: streams of events, and values that are long in coming."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Send

from perdure.server.http.feed import MEDIA_TYPE, Feed, OnDisconnect
from perdure.server.http.following import Following
from perdure.server.http.routes import Call
from perdure.server.http.waiting import Waiting
from perdure.server.langgraph.protocol import DOOR
from perdure.server.native.events import BEGINNING, STREAMS_AN_ACTOR, Follow
from perdure.streams.model import Encoding
from perdure.streams.service import Follower

FROM_THE_START = frozenset({"-1", "-", "0"})


class RunFeed(Feed):
    """A stream of events, and nothing but events and heartbeats."""

    greeting = b""
    heartbeat = b": heartbeat\r\n\r\n"


class Values(Waiting):
    """Values that are long in coming. Where the server ends first, the client asks again at `Location`."""

    protocol = DOOR

    async def stopped(self, send: Send) -> None:
        """Begin and never end: to the client that is a line that was cut, and it comes again."""
        await self._send(send, b"\n", more=True)


class Silence:
    """A source that has nothing to tell."""

    async def next(self) -> bytes | None:
        return None

    def close(self) -> None:
        """There is nothing to let go of."""


def last_event_id(call: Call) -> str | None:
    """The event to go on after: the first of all, or none, which is from now on."""
    given: str | None = call.request.headers.get("last-event-id") or None
    return BEGINNING if given in FROM_THE_START else given


async def streaming(
    call: Call,
    follow: Follow,
    encoding: Encoding,
    after: str | None,
    *,
    headers: Mapping[str, str] | None = None,
    left: OnDisconnect | None = None,
) -> Response:
    """The answer that sends a stream after a place; who gets it misses nothing from then on."""
    follower = await follow(after)
    if call.request.method == "HEAD":
        follower.close()
        return Response(media_type=MEDIA_TYPE)
    if after is None:
        await _begun(follower)
    source = Following(follower, encoding)
    return RunFeed(call, source, call.app.streams, STREAMS_AN_ACTOR, headers=headers, left=left)


async def _begun(follower: Follower) -> None:
    try:
        await follower.started()
    except BaseException:
        follower.close()
        raise


def silent(call: Call) -> Response:
    """A stream that has ended already."""
    return RunFeed(call, Silence(), call.app.streams, STREAMS_AN_ACTOR)
