"""Streams of events as server-sent events, resumed by Last-Event-ID."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.responses import Response

from perdure.protocols.http.feed import FORM, Feed, Left
from perdure.protocols.http.routes import Call
from perdure.protocols.native.run_wire import Since
from perdure.streams.model import Burst, Event, encode_sse
from perdure.streams.service import Follower

STREAMS_AN_ACTOR = 1000
BEGINNING = "-1"
THE_END = b": that was all\n\n"
"""Says that the stream itself has ended, and not only the connection."""
JOIN_BYTES = 64 << 10
ALWAYS = frozenset({"metadata", "error", "end"})
"""Events that every reader gets, whatever it asked for."""

Follow = Callable[[str | None], Awaitable[Follower]]


async def streaming(
    call: Call,
    follow: Follow,
    *,
    default: Since = "start",
    headers: Mapping[str, str] | None = None,
    left: Left | None = None,
) -> Response:
    """The answer that sends a stream, from where the caller wants it."""
    after = _after(call, default)
    follower = await follow(after)
    if call.request.method == "HEAD":
        follower.close()
        return Response(media_type=FORM)
    modes = getattr(call.query, "stream_mode", None)
    source = _Filtered(follower, modes) if modes else _Whole(follower)
    hello = b"" if after is not None else await _here(follower)
    return Feed(call, source, call.app.streams, STREAMS_AN_ACTOR, hello=hello, headers=headers, left=left)


async def _here(follower: Follower) -> bytes:
    """Names the place from which on everything is sent, so that a reader resumes there before any event."""
    try:
        await follower.started()
    except BaseException:
        follower.close()
        raise
    return b"id: 0-%d\n\n" % (follower.place or 0)


def _after(call: Call, default: Since) -> str | None:
    given = call.request.headers.get("last-event-id")
    if given:
        return str(given)
    since = getattr(call.query, "since", None) or default
    return BEGINNING if since == "start" else None


class _Whole:
    """A stream as it is: what many read is encoded once."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._ended = False

    async def next(self) -> bytes | None:
        data = b""
        while not data and not self._ended:
            burst = await self._follower.next()
            self._ended = burst is None
            data = THE_END if burst is None else self._joined(burst)
        return data or None

    def _joined(self, burst: Burst) -> bytes:
        """One who is behind gets what is at hand at once."""
        data = self.shown(burst)
        while len(data) < JOIN_BYTES and (more := self._follower.take()) is not None:
            data += self.shown(more)
        return data

    def shown(self, burst: Burst) -> bytes:
        return burst.sse

    def close(self) -> None:
        self._follower.close()


class _Filtered(_Whole):
    """Those events of a stream that are of some modes; an event of a subgraph has its mode before the bar."""

    def __init__(self, follower: Follower, modes: Sequence[str]) -> None:
        super().__init__(follower)
        self._modes = ALWAYS.union(modes)

    def shown(self, burst: Burst) -> bytes:
        return encode_sse([event for event in burst if self._wants(event)])

    def _wants(self, event: Event) -> bool:
        return event.event.partition("|")[0] in self._modes
