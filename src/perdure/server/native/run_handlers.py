"""Runs: made, awaited, streamed, cancelled and removed."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from perdure.access.endpoints import PREFIX
from perdure.client import native_wire as wire
from perdure.client import run_wire
from perdure.runtime.stats import standing
from perdure.server.http.bodies import encode
from perdure.server.http.delayed_json import MEDIA_TYPE, DelayedJson
from perdure.server.http.disconnect import OnDisconnect, cancel_on_disconnect
from perdure.server.http.routes import Call
from perdure.server.native.events import streaming
from perdure.server.native.handlers import paged
from perdure.server.native.rooms import outbox_of, threads_of
from perdure.threads.records import Run, RunEnd, RunRequest
from perdure.threads.service import ThreadService


def _place(run: Run, rest: str = "") -> str:
    return PREFIX + "/runs/" + quote(run.run_id, safe="") + rest


async def _created(call: Call) -> Run:
    return await threads_of(call).create_run(call.body, idempotency_key=call.idempotency_key)


async def create_run(call: Call) -> Response:
    run = await _created(call)
    return Response(encode(run), 201, {"Content-Location": _place(run)}, MEDIA_TYPE)


async def create_runs(call: Call) -> wire.Items[Run]:
    return wire.Items(items=await threads_of(call).create_runs(call.body.runs))


async def list_runs(call: Call) -> Response:
    query: run_wire.RunQuery = call.query
    return paged(
        await threads_of(call).list_runs(
            thread_id=query.thread_id, status=query.status, limit=query.limit, offset=query.offset
        )
    )


async def get_run(call: Call) -> Run:
    return await threads_of(call).get_run(call.path["run_id"], call.query.thread_id)


async def delete_run(call: Call) -> Response:
    await threads_of(call).delete_run(call.path["run_id"])
    return Response(status_code=204)


# --- waiting and streaming --------------------------------------------------------------------------------


async def create_and_wait(call: Call) -> Response:
    threads, run = threads_of(call), await _created(call)
    places = {"Content-Location": _place(run), "Location": _place(run, "/wait")}
    ending = threads.join_run(run.run_id, fresh=True)
    return DelayedJson(call, ending, headers=places, on_disconnect=_on_disconnect(threads, call.body, run))


async def create_and_stream(call: Call) -> Response:
    threads, run = threads_of(call), await _created(call)
    places = {"Content-Location": _place(run), "Location": _place(run, "/stream")}
    follow = partial(threads.follow_run, run.run_id, fresh=True)
    return await streaming(
        call, follow, headers=places, on_disconnect=_on_disconnect(threads, call.body, run)
    )


async def wait(call: Call) -> Response:
    threads, run_id = threads_of(call), call.path["run_id"]
    if call.request.method == "HEAD":
        await threads.get_run(run_id)
        return Response(media_type=MEDIA_TYPE)
    return DelayedJson(call, _end_or_none(threads, run_id, call.query.timeout))


async def _end_or_none(threads: ThreadService, run_id: str, timeout: float | None) -> RunEnd | None:
    try:
        return await threads.join_run(run_id, timeout)
    except TimeoutError:
        return None


async def stream(call: Call) -> Response:
    threads, run_id = threads_of(call), call.path["run_id"]
    on_disconnect = cancel_on_disconnect(threads, run_id, call.query.cancel_on_disconnect)
    return await streaming(call, partial(threads.follow_run, run_id), on_disconnect=on_disconnect)


def _on_disconnect(threads: ThreadService, request: RunRequest, run: Run) -> OnDisconnect | None:
    return cancel_on_disconnect(threads, run.run_id, request.on_disconnect == "cancel")


# --- ending -----------------------------------------------------------------------------------------------


async def cancel_run(call: Call) -> Run | Response:
    query: run_wire.CancelQuery = call.query
    ending = threads_of(call).cancel_run(call.path["run_id"], action=query.action, wait=query.wait)
    return DelayedJson(call, ending) if query.wait else await ending


async def cancel_runs(call: Call) -> wire.Items[Run]:
    wanted: run_wire.CancelMany = call.body
    ended = await threads_of(call).cancel_runs(
        thread_id=wanted.thread_id, run_ids=wanted.run_ids, status=wanted.status, action=wanted.action
    )
    return wire.Items(items=ended)


# --- what is held up where --------------------------------------------------------------------------------


async def why(call: Call) -> Any:
    return await threads_of(call).why(call.path["id"])


async def stats(call: Call) -> Any:
    return await standing(threads_of(call), outbox_of(call))
