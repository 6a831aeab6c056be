"""Streams of events as server-sent events, resumed by Last-Event-ID."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.responses import Response

from perdure.client.run_wire import Since
from perdure.server.http.feed import MEDIA_TYPE, Feed, OnDisconnect
from perdure.server.http.following import Following
from perdure.server.http.routes import Call
from perdure.streams.model import Event, encode_sse
from perdure.streams.service import Follower

STREAMS_AN_ACTOR = 1000
BEGINNING = "-1"
THE_END = b": that was all\n\n"
"""Says that the stream itself has ended, and not only the connection."""
ALWAYS = frozenset({"metadata", "error", "end"})
"""Events that every reader gets, whatever it asked for."""

Follow = Callable[[str | None], Awaitable[Follower]]


async def streaming(
    call: Call,
    follow: Follow,
    *,
    default: Since = "start",
    headers: Mapping[str, str] | None = None,
    left: OnDisconnect | None = None,
) -> Response:
    """The answer that sends a stream, from where the caller wants it."""
    after = _after(call, default)
    follower = await follow(after)
    if call.request.method == "HEAD":
        follower.close()
        return Response(media_type=MEDIA_TYPE)
    modes = getattr(call.query, "stream_mode", None)
    encoding = _Filtered(ALWAYS.union(modes)) if modes else encode_sse
    source = Following(follower, encoding, THE_END)
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


@dataclass(frozen=True, slots=True)
class _Filtered:
    """Those events that are of some modes; an event of a subgraph has its mode before the bar."""

    modes: frozenset[str]

    def __call__(self, events: Sequence[Event]) -> bytes:
        return encode_sse([event for event in events if event.event.partition("|")[0] in self.modes])
