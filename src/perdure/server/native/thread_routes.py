"""Native routes of threads and runs, with the handlers that wait, stream or set headers."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from perdure.server.http.bodies import encode
from perdure.server.http.long_responses import JSON_TYPE, DelayedJson, OnDisconnect, cancel_on_disconnect
from perdure.server.http.long_responses import MEDIA_TYPE as EVENT_STREAM
from perdure.server.http.routes import Call, Route
from perdure.server.native.derive import ByHand, derive_routes
from perdure.server.native.events import Since, streaming
from perdure.service.endpoints import PREFIX
from perdure.threads.records import Run, RunEnd, RunRequest
from perdure.threads.service import Threads


class StreamQuery(msgspec.Struct, kw_only=True):
    """The events to stream, and from where; a Last-Event-ID overrides `since`."""

    stream_mode: list[str] | None = None
    since: Since | None = None
    cancel_on_disconnect: bool = False


class ThreadStreamQuery(msgspec.Struct, kw_only=True):
    """The events to stream, and from where; a Last-Event-ID overrides `since`."""

    stream_mode: list[str] | None = None
    since: Since | None = None


def _place(run: Run, rest: str = "") -> str:
    return PREFIX + "/runs/" + quote(run.run_id, safe="") + rest


async def _created(call: Call) -> Run:
    return await call.threads.create_run(call.body, idempotency_key=call.idempotency_key)


async def create_run(call: Call) -> Response:
    """Create a run and return its location."""
    run = await _created(call)
    return Response(encode(run), 201, {"Content-Location": _place(run)}, JSON_TYPE)


async def create_and_wait(call: Call) -> Response:
    """Create a run and answer with its end; blank lines precede the answer."""
    threads, run = call.threads, await _created(call)
    places = {"Content-Location": _place(run), "Location": _place(run, "/wait")}
    ending = threads.join_new_run(run.run_id)
    return DelayedJson(call, ending, headers=places, on_disconnect=_on_disconnect(threads, call.body, run))


async def create_and_stream(call: Call) -> Response:
    """Create a run and stream its events."""
    threads = call.threads
    async with threads.followed_run(call.body, idempotency_key=call.idempotency_key) as run:
        places = {"Content-Location": _place(run), "Location": _place(run, "/stream")}
        follow = partial(threads.follow_run, run.run_id, fresh=True)
        return await streaming(
            call, follow, headers=places, on_disconnect=_on_disconnect(threads, call.body, run)
        )


def _on_disconnect(threads: Threads, request: RunRequest, run: Run) -> OnDisconnect | None:
    return cancel_on_disconnect(threads, run.run_id, request.on_disconnect == "cancel")


async def join_run(call: Call) -> Response:
    """Answer with the end of a run, or null after the timeout."""
    threads, run_id = call.threads, call.path["run_id"]
    if call.request.method == "HEAD":
        await threads.get_run(run_id)
        return Response(media_type=JSON_TYPE)
    return DelayedJson(call, _end_or_none(threads, run_id, call.query.timeout))


async def _end_or_none(threads: Threads, run_id: str, timeout: float | None) -> RunEnd | None:
    try:
        return await threads.join_run(run_id, timeout)
    except TimeoutError:
        return None


async def stream_run(call: Call) -> Response:
    """Stream the events of a run after Last-Event-ID."""
    threads, run_id = call.threads, call.path["run_id"]
    on_disconnect = cancel_on_disconnect(threads, run_id, call.query.cancel_on_disconnect)
    return await streaming(call, partial(threads.follow_run, run_id), on_disconnect=on_disconnect)


async def stream_thread(call: Call) -> Response:
    """Stream the events of all runs, by default from now on."""
    follow = partial(call.threads.follow_thread, call.path["thread_id"])
    return await streaming(call, follow, default="now")


async def cancel_run(call: Call) -> Run | Response:
    """Cancel a run; with `wait`, answer after its worker has stopped."""
    action: Any = call.query.action
    ending = call.threads.cancel_run(call.path["run_id"], action=action, wait=call.query.wait)
    return DelayedJson(call, ending) if call.query.wait else await ending


_EVENTS: dict[str, Any] = {"answer": str, "answer_form": EVENT_STREAM}

THREAD_ROUTES: tuple[Route, ...] = (
    *derive_routes(
        Threads,
        lambda call: call.threads,
        {
            Threads.create_run: create_run,
            Threads.cancel_run: cancel_run,
            Threads.wait: create_and_wait,
            Threads.join_run: ByHand(join_run, answer=RunEnd | None),
            Threads.stream: ByHand(create_and_stream, **_EVENTS),
            Threads.stream_run: ByHand(stream_run, query=StreamQuery, **_EVENTS),
            Threads.stream_thread: ByHand(stream_thread, query=ThreadStreamQuery, **_EVENTS),
        },
    ),
)
