"""Runs of the LangGraph protocol: made, awaited, read, cancelled and removed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.server.http.disconnect import cancel_on_disconnect
from perdure.server.http.routes import Call
from perdure.server.langgraph import run_requests as requests
from perdure.server.langgraph.auth_pass import asked_by, key_of
from perdure.server.langgraph.stream_answers import Values
from perdure.server.langgraph.wire import answer, check_uuid, failure_of, nothing, run_of, selected
from perdure.server.native.rooms import threads_of
from perdure.threads.model import FAILURES
from perdure.threads.records import RUN_STATUSES, Run, RunEnd
from perdure.threads.service import ThreadService

ACCEPTED = 202
UNDONE = "rollback"
NONE_TO_CANCEL = "no runs to cancel: they are not known, or they have ended"
FIELDS = (
    "run_id",
    "thread_id",
    "assistant_id",
    "status",
    "metadata",
    "kwargs",
    "multitask_strategy",
    "created_at",
    "updated_at",
)


# --- making -----------------------------------------------------------------------------------------------


async def created(call: Call) -> Run:
    """The run that the body asks for, on the thread of the path if there is one."""
    request = asked_by(call, requests.request_of(call.body, call.path.get("thread_id")))
    return await threads_of(call).create_run(request, idempotency_key=key_of(call))


def place(run: Run, rest: str = "") -> str:
    return f"/threads/{run.thread_id}/runs/{run.run_id}{rest}"


def places(run: Run, rest: str) -> dict[str, str]:
    """Where a run is, and where a client goes on if its line is cut."""
    return {"Location": place(run, rest), "Content-Location": place(run)}


async def create_run(call: Call) -> Response:
    run = await created(call)
    return answer(run_of(run), headers={"Content-Location": place(run)})


async def create_batch(call: Call) -> Response:
    asked = [asked_by(call, requests.batch_request(each)) for each in call.body]
    runs = await threads_of(call).create_runs(asked)
    return answer([run_of(run) for run in runs])


async def create_and_wait(call: Call) -> Response:
    threads, run = threads_of(call), await created(call)
    on_disconnect = cancel_on_disconnect(threads, run.run_id, run.on_disconnect == "cancel")
    coming = _values(threads, run.run_id, fresh=True)
    return Values(call, coming, headers=places(run, "/join"), on_disconnect=on_disconnect)


async def _values(threads: ThreadService, run_id: str, *, fresh: bool = False) -> Any:
    return values_of(await threads.join_run(run_id, fresh=fresh))


def values_of(end: RunEnd) -> Any:
    """What whoever waited gets: the thread's values, with what they wait for, or why the run failed."""
    if end.run.status in FAILURES and end.run.error is not None:
        return {"__error__": failure_of(end.run.error)}
    values = {} if end.values is None else end.values
    if not end.interrupts:
        return values
    asked = [{"value": each.value, "id": each.id} for each in end.interrupts]
    return {**(values if isinstance(values, Mapping) else {}), "__interrupt__": asked}


# --- reading ----------------------------------------------------------------------------------------------


async def found(call: Call) -> Run:
    """The run of the path. One that was rolled back is not there."""
    run_id = call.path["run_id"]
    run = await threads_of(call).get_run(run_id, call.path.get("thread_id"))
    if run.status == UNDONE:
        raise NotFound(f"Run {run_id} not found")
    return run


async def joined(call: Call) -> Run:
    """The run of the path, also for a while after it has gone with a thread of its own."""
    try:
        return await found(call)
    except NotFound:
        with contextlib.suppress(TimeoutError):
            run = (await threads_of(call).join_run(call.path["run_id"], 0)).run
            is_there = call.path.get("thread_id") in (None, run.thread_id)
            if run.temporary and is_there and run.status != UNDONE:
                return run
        raise


async def get_run(call: Call) -> Response:
    return answer(run_of(await found(call)))


async def list_runs(call: Call) -> Response:
    query: requests.RunsQuery = call.query
    names = items_or_none(requests.items_of(query.select, "select"))
    status = query.status or None
    if status is not None and status not in RUN_STATUSES:
        raise InvalidInput(f"status is {status!r}; it must be one of {', '.join(RUN_STATUSES)}")
    runs = await threads_of(call).list_runs(
        thread_id=call.path["thread_id"],
        status=status,
        limit=query.limit,
        offset=query.offset,
        undone=False,
    )
    return answer([selected(run_of(run), names) for run in runs.items])


def items_or_none(names: list[str]) -> list[str] | None:
    """The fields that are asked for; None is all of them."""
    unknown = [name for name in names if name not in FIELDS]
    if unknown:
        raise InvalidInput(f"a run has no field {unknown[0]!r}; it has {', '.join(FIELDS)}")
    return names or None


async def join_run(call: Call) -> Response:
    threads, run = threads_of(call), await joined(call)
    if call.request.method == "HEAD":
        return answer(None)
    on_disconnect = cancel_on_disconnect(threads, run.run_id, call.query.cancel_on_disconnect)
    return Values(
        call, _values(threads, run.run_id), headers=places(run, "/join"), on_disconnect=on_disconnect
    )


# --- ending -----------------------------------------------------------------------------------------------


async def cancel_run(call: Call) -> Response:
    query: requests.CancelQuery = call.query
    threads, run = threads_of(call), await found(call)
    try:
        await threads.cancel_run(run.run_id, action=query.action)
    except Conflict as error:
        raise NotFound(error.message) from None
    if not query.wait:
        return Response(status_code=ACCEPTED)
    return Values(call, _stopped(threads, run.run_id), headers=places(run, "/join"))


async def _stopped(threads: ThreadService, run_id: str) -> Any:
    """The thread's values once nobody executes the run any longer."""
    await threads.stopped(run_id)
    return await _values(threads, run_id)


async def cancel_runs(call: Call) -> Response:
    wanted: requests.CancelMany = call.body
    _check_choice(wanted)
    run_ids = [check_uuid(each, "run_id") for each in wanted.run_ids] if wanted.run_ids is not None else None
    ended = await threads_of(call).cancel_runs(
        thread_id=None if wanted.thread_id is None else check_uuid(wanted.thread_id, "thread_id"),
        run_ids=run_ids,
        status=wanted.status,
        action=call.query.action,
    )
    if not ended:
        raise NotFound(NONE_TO_CANCEL)
    return nothing()


def _check_choice(wanted: requests.CancelMany) -> None:
    """Either runs of a thread by their ids, or all that have a status."""
    if wanted.status is not None:
        if wanted.thread_id is not None or wanted.run_ids is not None:
            raise InvalidInput("give either a status, or a thread_id with run_ids, and not both")
    elif wanted.thread_id is None or not wanted.run_ids:
        raise InvalidInput("give a status, or a thread_id with run_ids")


async def delete_run(call: Call) -> Response:
    run = await found(call)
    await threads_of(call).delete_run(run.run_id)
    return nothing()
