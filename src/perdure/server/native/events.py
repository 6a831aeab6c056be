"""Streams of events as server-sent events, resumed by Last-Event-ID."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from starlette.responses import Response

from perdure.server.http.long_responses import BEGINNING, OnDisconnect, encode_events, follow_events
from perdure.server.http.routes import Call
from perdure.streams.model import CONTROL, StreamEvent
from perdure.streams.service import Follower

Since = Literal["start", "now"]

THE_END = b": that was all\n\n"
"""Comment that marks the end of the stream, as opposed to a lost connection."""
ALWAYS = frozenset({"metadata", "error", CONTROL, "end"})
"""Events that every reader gets, regardless of its modes."""


async def streaming(
    call: Call,
    follow: Callable[[str | None], Awaitable[Follower]],
    *,
    default: Since = "start",
    headers: Mapping[str, str] | None = None,
    on_disconnect: OnDisconnect | None = None,
) -> Response:
    """Stream events to the caller, from the position that it asked for."""
    modes = getattr(call.query, "stream_mode", None)
    return await follow_events(
        call,
        follow,
        _Filtered(ALWAYS.union(modes)) if modes else encode_events,
        _after(call, default),
        last=THE_END,
        names_start=True,
        headers=headers,
        on_disconnect=on_disconnect,
    )


def _after(call: Call, default: Since) -> str | None:
    given = call.request.headers.get("last-event-id")
    if given:
        return str(given)
    since = getattr(call.query, "since", None) or default
    return BEGINNING if since == "start" else None


@dataclass(frozen=True, slots=True)
class _Filtered:
    """Encodes only events of some modes; the mode of a subgraph's event is before the bar."""

    modes: frozenset[str]

    def __call__(self, events: Sequence[StreamEvent]) -> bytes:
        return encode_events([event for event in events if event.event.partition("|")[0] in self.modes])
