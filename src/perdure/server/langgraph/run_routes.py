"""The LangGraph routes of runs and their streams."""

from __future__ import annotations

from typing import Any

from perdure.kernel.errors import BadRequest, Conflict, NotFound, NotSupported
from perdure.server.http.sse import MEDIA_TYPE
from perdure.server.langgraph import run_handlers as handlers
from perdure.server.langgraph import run_requests as requests
from perdure.server.langgraph import stream_handlers as streams
from perdure.server.langgraph.declare import declaring

_runs = declaring("runs")
_threads = declaring("threads")

OF_THREAD = "/threads/{thread_id}"
RUN = OF_THREAD + "/runs/{run_id}"
Record = dict[str, Any]

_ASKING: dict[str, Any] = {
    "body": requests.RunBody,
    "errors": (BadRequest, NotFound, Conflict, NotSupported),
}
_STREAMED: dict[str, Any] = {"answer": str, "answer_form": MEDIA_TYPE}
_MISSING: dict[str, Any] = {"errors": (NotFound, NotSupported)}

_ON_A_THREAD = (
    _runs(
        "POST",
        OF_THREAD + "/runs",
        handlers.create_run,
        "write",
        "Ask for a run on a thread",
        answer=Record,
        **_ASKING,
    ),
    _runs(
        "POST",
        OF_THREAD + "/runs/stream",
        streams.create_and_stream,
        "write",
        "Ask for a run on a thread and get its events as server-sent events",
        **_STREAMED,
        **_ASKING,
    ),
    _runs(
        "POST",
        OF_THREAD + "/runs/wait",
        handlers.create_and_wait,
        "write",
        "Ask for a run on a thread and wait for the values at its end; blank lines come before them",
        answer=Any,
        **_ASKING,
    ),
)

_WITHOUT_A_THREAD = (
    _runs(
        "POST",
        "/runs",
        handlers.create_run,
        "write",
        "Ask for a run that has a thread of its own",
        answer=Record,
        **_ASKING,
    ),
    _runs(
        "POST",
        "/runs/stream",
        streams.create_and_stream,
        "write",
        "Ask for a run that has a thread of its own and get its events as server-sent events",
        **_STREAMED,
        **_ASKING,
    ),
    _runs(
        "POST",
        "/runs/wait",
        handlers.create_and_wait,
        "write",
        "Ask for a run that has a thread of its own and wait for the values at its end",
        answer=Any,
        **_ASKING,
    ),
    _runs(
        "POST",
        "/runs/batch",
        handlers.create_batch,
        "write",
        "Ask for many runs, all of them or none",
        body=requests.Batch,
        answer=list[Record],
        errors=(BadRequest, NotFound, Conflict, NotSupported),
    ),
)

_READING = (
    _runs(
        "GET",
        OF_THREAD + "/runs",
        handlers.list_runs,
        "read",
        "The runs of a thread, the newest first",
        query=requests.RunsQuery,
        answer=list[Record],
        **_MISSING,
    ),
    _runs("GET", RUN, handlers.get_run, "read", "A run", answer=Record, **_MISSING),
    _runs(
        "GET",
        RUN + "/join",
        handlers.join_run,
        "read",
        "Wait for the values at the end of a run; blank lines come before them",
        query=requests.JoinQuery,
        answer=Any,
        **_MISSING,
    ),
    _runs(
        "GET",
        RUN + "/stream",
        streams.join_stream,
        "read",
        "The events of a run from now on, or after the one that Last-Event-ID names",
        query=requests.StreamQuery,
        **_STREAMED,
        **_MISSING,
    ),
    _runs(
        "GET",
        "/runs/{run_id}/stream",
        streams.join_stream,
        "read",
        "The events of a run whose thread the caller does not know",
        query=requests.StreamQuery,
        **_STREAMED,
        **_MISSING,
    ),
    _threads(
        "GET",
        OF_THREAD + "/stream",
        streams.join_thread,
        "read",
        "The events of all runs of a thread from now on, or after the one that Last-Event-ID names",
        query=requests.ThreadStreamQuery,
        **_STREAMED,
        **_MISSING,
    ),
)

_ENDING = (
    _runs(
        "POST",
        RUN + "/cancel",
        handlers.cancel_run,
        "write",
        "End a run that has not ended",
        query=requests.CancelQuery,
        status=202,
        **_MISSING,
    ),
    _runs(
        "POST",
        "/runs/cancel",
        handlers.cancel_runs,
        "write",
        "End runs that have not ended, by their ids or by their status",
        body=requests.CancelMany,
        query=requests.CancelManyQuery,
        status=204,
        **_MISSING,
    ),
    _runs(
        "DELETE",
        RUN,
        handlers.delete_run,
        "write",
        "Remove a run with its checkpoints and its stream",
        status=204,
        **_MISSING,
    ),
)

_NOT_SPOKEN = (
    _threads(
        "POST",
        OF_THREAD + "/stream/events",
        streams.not_spoken,
        "read",
        "The v3 streaming protocol, which is not supported",
        errors=(NotSupported,),
    ),
    _threads(
        "POST",
        OF_THREAD + "/commands",
        streams.not_spoken,
        "read",
        "The v3 streaming protocol, which is not supported",
        errors=(NotSupported,),
    ),
)

RUN_ROUTES = (*_ON_A_THREAD, *_WITHOUT_A_THREAD, *_READING, *_ENDING, *_NOT_SPOKEN)
