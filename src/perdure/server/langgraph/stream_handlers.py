"""Streams of the LangGraph protocol: of a run that is made or joined, and of all runs of a thread."""

from __future__ import annotations

from functools import partial

from starlette.responses import Response

from perdure.kernel.errors import InvalidInput, NotSupported
from perdure.server.http.disconnect import cancel_on_disconnect
from perdure.server.http.routes import Call
from perdure.server.http.sse import BEGINNING, follow_events
from perdure.server.langgraph import run_requests as requests
from perdure.server.langgraph.run_handlers import created, joined, places
from perdure.server.langgraph.stream_answers import RunStream, last_event_id, silent
from perdure.server.langgraph.stream_frames import RUN_MODES, RunFrames, ThreadFrames
from perdure.server.native.rooms import threads_of
from perdure.threads.model import LIVE_STATUSES
from perdure.threads.records import Run


def _has_ids(run: Run) -> bool:
    return bool(run.kwargs.options.get(requests.RESUMABLE))


async def create_and_stream(call: Call) -> Response:
    threads, run = threads_of(call), await created(call)
    return await follow_events(
        call,
        partial(threads.follow_run, run.run_id, fresh=True),
        RunFrames(_has_ids(run)),
        BEGINNING,
        headers=places(run, "/stream"),
        response=RunStream,
        on_disconnect=cancel_on_disconnect(threads, run.run_id, run.on_disconnect == "cancel"),
    )


async def join_stream(call: Call) -> Response:
    query: requests.StreamQuery = call.query
    threads, run, after = threads_of(call), await joined(call), last_event_id(call)
    if after is None and run.status not in LIVE_STATUSES:
        return silent(call)
    modes = requests.items_of(query.stream_mode, "stream_mode")
    return await follow_events(
        call,
        partial(threads.follow_run, run.run_id),
        RunFrames(_has_ids(run), frozenset(modes) or None),
        after,
        response=RunStream,
        on_disconnect=cancel_on_disconnect(threads, run.run_id, query.cancel_on_disconnect),
    )


async def join_thread(call: Call) -> Response:
    query: requests.ThreadStreamQuery = call.query
    given = [*(query.stream_mode or ()), *(query.stream_modes or ())]
    modes = requests.items_of(given, "stream_mode") or [RUN_MODES]
    unknown = [mode for mode in modes if mode not in requests.THREAD_STREAM_MODES]
    if unknown:
        known = ", ".join(requests.THREAD_STREAM_MODES)
        raise InvalidInput(f"a thread has no stream mode {unknown[0]!r}; it has {known}")
    follow = partial(threads_of(call).follow_thread, call.path["thread_id"])
    frames = ThreadFrames(frozenset(modes))
    return await follow_events(call, follow, frames, last_event_id(call), response=RunStream)


async def not_spoken(call: Call) -> Response:
    raise NotSupported(
        "the v3 streaming protocol (threads.stream) is not supported here; use runs.stream, "
        "runs.join_stream or threads.join_stream"
    )
