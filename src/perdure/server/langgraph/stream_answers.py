"""Answers of the LangGraph protocol that last: streams of events, and values that are long in coming."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Send

from perdure.server.http.delayed_json import DelayedJson
from perdure.server.http.routes import Call
from perdure.server.http.sse import BEGINNING, STREAMS_AN_ACTOR, EventStreamResponse
from perdure.server.langgraph.protocol import DOOR

FROM_THE_START = frozenset({"-1", "-", "0"})


class RunStream(EventStreamResponse):
    """A stream of events, and nothing but events and heartbeats."""

    greeting = b""
    heartbeat = b": heartbeat\r\n\r\n"


class Values(DelayedJson):
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


def silent(call: Call) -> Response:
    """A stream that has ended already."""
    return RunStream(call, Silence(), call.app.streams, STREAMS_AN_ACTOR)
