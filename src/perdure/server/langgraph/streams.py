"""Event streams of the LangGraph protocol: of a new or joined run, and of a whole thread."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.server.http.long_responses import (
    BEGINNING,
    MEDIA_TYPE,
    EventStreamResponse,
    cancel_on_disconnect,
    crlf_frame,
    follow_events,
)
from perdure.server.http.routes import Call
from perdure.server.langgraph.routing import Authorization, LangGraphResource, before, on_thread
from perdure.server.langgraph.run_requests import RESUMABLE
from perdure.server.langgraph.runs import (
    CREATING,
    RUN,
    created_to_follow,
    find_joinable,
    locations,
    query_list,
)
from perdure.server.langgraph.states import STATE_UPDATE
from perdure.server.langgraph.threads import THREAD
from perdure.streams.model import CONTROL, METADATA, StreamEvent
from perdure.threads.model import LIVE_STATUSES
from perdure.threads.records import Run

streams = LangGraphResource("runs")
thread_streams = LangGraphResource("threads")

END: Final = "end"
HIDDEN: Final = frozenset({CONTROL, END})
"""Events of the native protocol that LangGraph clients do not expect in the stream of a run."""
MESSAGES: Final = "messages"
RUN_MODES: Final = "run_modes"
LIFECYCLE: Final = "lifecycle"
THREAD_STREAM_MODES: Final = (RUN_MODES, LIFECYCLE, STATE_UPDATE)
ANY_MESSAGES: Final = frozenset({MESSAGES, "messages-tuple"})
"""Modes that select every form of message events."""
FROM_START: Final = frozenset({"-1", "-", "0"})
"""Values of Last-Event-ID that ask for all events."""

STREAMED: dict[str, Any] = {"answer": str, "answer_form": MEDIA_TYPE}
"""Shared by the routes that answer with server-sent events."""


class RunStream(EventStreamResponse):
    """A stream of only events and heartbeats, without a greeting."""

    greeting = b""
    heartbeat = b": heartbeat\r\n\r\n"


# --- frames -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunFrames:
    """Encodes the events of a run. The end of the run ends the stream without an event."""

    ids: bool
    """Whether each event has an id to resume after."""
    modes: frozenset[str] | None = None
    """The modes of the events; None is all."""

    def __call__(self, events: Sequence[StreamEvent]) -> bytes:
        frames = [
            crlf_frame(event.event, event.body, event.id if self.ids else None)
            for event in events
            if event.event not in HIDDEN and (self.modes is None or has_mode(event.event, self.modes))
        ]
        return "".join(frames).encode()


@dataclass(frozen=True, slots=True)
class ThreadFrames:
    """Encodes the events of all runs of a thread, with the end of each run."""

    modes: frozenset[str]

    def __call__(self, events: Sequence[StreamEvent]) -> bytes:
        return "".join([_thread_frame(event) for event in events if self._wants(event)]).encode()

    def _wants(self, event: StreamEvent) -> bool:
        if event.event == CONTROL:
            return False
        if event.event == STATE_UPDATE:
            return STATE_UPDATE in self.modes
        return RUN_MODES in self.modes or (LIFECYCLE in self.modes and event.event in (METADATA, END))


def _thread_frame(event: StreamEvent) -> str:
    if event.event != END:
        return crlf_frame(event.event, event.body, event.id)
    return crlf_frame(METADATA, encode_json({"status": "run_done", "run_id": event.source}), event.id)


def has_mode(event: str, modes: Collection[str]) -> bool:
    """Return whether an event has one of the modes. A subgraph's event has its mode before the bar."""
    mode = event.partition("|")[0]
    if mode in modes:
        return True
    return mode.partition("/")[0] == MESSAGES and not ANY_MESSAGES.isdisjoint(modes)


# --- streams of runs --------------------------------------------------------------------------------------


def _is_resumable(run: Run) -> bool:
    return bool(run.kwargs.options.get(RESUMABLE))


def last_event_id(call: Call) -> str | None:
    """Return the event to continue after; None starts from now on."""
    given: str | None = call.request.headers.get("last-event-id") or None
    return BEGINNING if given in FROM_START else given


@streams.route(
    "POST",
    "/runs/stream",
    summary="Create a run on a temporary thread and stream its events",
    **STREAMED,
    **CREATING,
)
@streams.route(
    "POST",
    THREAD + "/runs/stream",
    summary="Create a run on a thread and stream its events",
    **STREAMED,
    **CREATING,
)
async def create_and_stream(call: Call) -> Response:
    async with created_to_follow(call) as run:
        return await follow_events(
            call,
            partial(call.threads.follow_run, run.run_id, fresh=True),
            RunFrames(_is_resumable(run)),
            BEGINNING,
            response=RunStream,
            headers=locations(run, "/stream"),
            on_disconnect=cancel_on_disconnect(call.threads, run.run_id, run.on_disconnect == "cancel"),
        )


class LangGraphStreamQuery(msgspec.Struct, kw_only=True):
    """The events to stream, and whether to cancel the run when the client disconnects."""

    stream_mode: list[str] | None = None
    cancel_on_disconnect: bool = False


@before
async def _authorize_join(request: Authorization) -> None:
    """Authorize by the run's thread; the path does not name the thread."""
    run = await find_joinable(request.call)
    await request.authorize_thread("read", run.thread_id, run_id=UUID(run.run_id))


@streams.route(
    "GET",
    "/runs/{run_id}/stream",
    rule=_authorize_join,
    scope="read",
    summary="Stream the events of a run whose thread the caller does not know",
    query=LangGraphStreamQuery,
    errors=(NotFound,),
    **STREAMED,
)
@streams.route(
    "GET",
    RUN + "/stream",
    rule=on_thread("read"),
    scope="read",
    summary="Stream the events of a run from now on, or after Last-Event-ID",
    query=LangGraphStreamQuery,
    errors=(NotFound,),
    **STREAMED,
)
async def join_stream(call: Call) -> Response:
    query: LangGraphStreamQuery = call.query
    run, after = await find_joinable(call), last_event_id(call)
    if after is None and run.status not in LIVE_STATUSES:
        return RunStream(call, _NoEvents(), call.app.streams, call.app.settings.max_streams)
    modes = query_list(query.stream_mode, "stream_mode")
    return await follow_events(
        call,
        partial(call.threads.follow_run, run.run_id),
        RunFrames(_is_resumable(run), frozenset(modes) or None),
        after,
        response=RunStream,
        on_disconnect=cancel_on_disconnect(call.threads, run.run_id, query.cancel_on_disconnect),
    )


class _NoEvents:
    """The source of a stream that has already ended."""

    async def next(self) -> bytes | None:
        return None

    def close(self) -> None:
        """Do nothing; no resource is open."""


# --- streams of threads -----------------------------------------------------------------------------------


class LangGraphThreadStreamQuery(msgspec.Struct, kw_only=True):
    """The events of a thread to stream."""

    stream_mode: list[str] | None = None
    stream_modes: list[str] | None = None


@thread_streams.route(
    "GET",
    THREAD + "/stream",
    rule=on_thread("read"),
    scope="read",
    summary="Stream the events of all runs of a thread from now on, or after Last-Event-ID",
    query=LangGraphThreadStreamQuery,
    errors=(NotFound,),
    **STREAMED,
)
async def join_thread(call: Call) -> Response:
    query: LangGraphThreadStreamQuery = call.query
    given = [*(query.stream_mode or ()), *(query.stream_modes or ())]
    modes = query_list(given, "stream_mode") or [RUN_MODES]
    unknown = [mode for mode in modes if mode not in THREAD_STREAM_MODES]
    if unknown:
        allowed = ", ".join(THREAD_STREAM_MODES)
        raise InvalidInput(f"a thread has no stream mode {unknown[0]!r}; it has {allowed}")
    follow = partial(call.threads.follow_thread, call.path["thread_id"])
    frames = ThreadFrames(frozenset(modes))
    return await follow_events(call, follow, frames, last_event_id(call), response=RunStream)
