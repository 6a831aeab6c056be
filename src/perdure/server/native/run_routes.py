"""The native routes of runs, and of why something stands where it stands."""

from __future__ import annotations

from typing import Any

from perdure.client import native_wire as wire
from perdure.client import run_wire
from perdure.kernel.errors import BadQuery, Conflict, NotFound, NotSupported
from perdure.kernel.pages import Page
from perdure.server.http.sse import MEDIA_TYPE
from perdure.server.native import run_handlers as handlers
from perdure.server.native.declare import declaring
from perdure.threads.records import Run, RunEnd, RunRequest

_runs = declaring("runs")
_overview = declaring("overview")

_MAKING = (
    _runs(
        "POST",
        "/runs",
        handlers.create_run,
        "write",
        "Ask for a run; a repeated Idempotency-Key gives the first one",
        body=RunRequest,
        answer=Run,
        status=201,
        errors=(NotFound, Conflict, NotSupported),
    ),
    _runs(
        "POST",
        "/runs/batch",
        handlers.create_runs,
        "write",
        "Ask for many runs, all of them or none",
        body=run_wire.RunBatch,
        answer=wire.Items[Run],
        status=201,
        errors=(NotFound, Conflict, NotSupported),
    ),
    _runs(
        "POST",
        "/runs/wait",
        handlers.create_and_wait,
        "write",
        "Ask for a run and wait for its end; blank lines come before the answer while it lasts",
        body=RunRequest,
        answer=RunEnd,
        errors=(NotFound, Conflict, NotSupported),
    ),
    _runs(
        "POST",
        "/runs/stream",
        handlers.create_and_stream,
        "write",
        "Ask for a run and get its events as server-sent events",
        body=RunRequest,
        answer=str,
        answer_form=MEDIA_TYPE,
        errors=(NotFound, Conflict, NotSupported),
    ),
)

_READING = (
    _runs(
        "GET",
        "/runs",
        handlers.list_runs,
        "read",
        "List runs, the newest first",
        query=run_wire.RunQuery,
        answer=Page[Run],
        errors=(BadQuery, NotFound, NotSupported),
    ),
    _runs(
        "GET",
        "/runs/{run_id}",
        handlers.get_run,
        "read",
        "A run",
        query=run_wire.RunPlace,
        answer=Run,
        errors=(NotFound, NotSupported),
    ),
    _runs(
        "GET",
        "/runs/{run_id}/wait",
        handlers.wait,
        "read",
        "Wait for the end of a run; null when the time is up",
        query=run_wire.WaitQuery,
        answer=RunEnd | None,
        errors=(NotFound, NotSupported),
    ),
    _runs(
        "GET",
        "/runs/{run_id}/stream",
        handlers.stream,
        "read",
        "The events of a run as server-sent events, after the one that Last-Event-ID names",
        query=run_wire.StreamQuery,
        answer=str,
        answer_form=MEDIA_TYPE,
        errors=(NotFound, NotSupported),
    ),
)

_ENDING = (
    _runs(
        "POST",
        "/runs/cancel",
        handlers.cancel_runs,
        "write",
        "End runs that have not ended, by their ids or by their status",
        body=run_wire.CancelMany,
        answer=wire.Items[Run],
        errors=(NotFound, NotSupported),
    ),
    _runs(
        "POST",
        "/runs/{run_id}/cancel",
        handlers.cancel_run,
        "write",
        "End a run that has not ended",
        query=run_wire.CancelQuery,
        answer=Run,
        errors=(NotFound, Conflict, NotSupported),
    ),
    _runs(
        "DELETE",
        "/runs/{run_id}",
        handlers.delete_run,
        "write",
        "Remove a run with its checkpoints and its stream; its trace stays",
        status=204,
        errors=(NotFound, NotSupported),
    ),
)

_OVERVIEW = (
    _overview(
        "GET",
        "/why/{id}",
        handlers.why,
        "read",
        "Why a rollout, run or thread stands where it stands",
        answer=run_wire.Why,
        errors=(NotFound, NotSupported),
    ),
    _overview(
        "GET",
        "/stats",
        handlers.stats,
        "read",
        "How many runs wait and run, and for how long",
        answer=dict[str, Any],
        errors=(NotSupported,),
    ),
)

RUN_ROUTES = (*_MAKING, *_READING, *_ENDING, *_OVERVIEW)
