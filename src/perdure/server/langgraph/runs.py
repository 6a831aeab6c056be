"""Runs of the LangGraph protocol: create, wait, read, cancel and delete."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta
from starlette.responses import Response
from starlette.types import Send

from perdure.kernel.checks import optional_choice
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import BadRequest, Conflict, Forbidden, InvalidInput, NotFound
from perdure.server.http.long_responses import DelayedJson, cancel_on_disconnect
from perdure.server.http.routes import Call
from perdure.server.langgraph.protocol import (
    PAGE,
    PROTOCOL,
    Limit,
    Offset,
    RequestBody,
    Select,
    answer,
    check_uuid,
    check_uuid_or_none,
    is_uuid,
    iso,
    no_content,
    selected,
    show_failure,
    uuid_or_none,
)
from perdure.server.langgraph.routing import (
    Authorization,
    LangGraphResource,
    before,
    get_idempotency_key,
    on_thread,
    with_caller,
)
from perdure.server.langgraph.run_requests import Batch, RunBody, batch_request, build_run_request
from perdure.server.langgraph.threads import THREAD
from perdure.service.endpoints import MAX_BATCH
from perdure.threads.model import FAILURES, LIVE_STATUSES
from perdure.threads.operations.queries import RunSearch
from perdure.threads.records import (
    RUN_STATUSES,
    CancelAction,
    MultitaskStrategy,
    Run,
    RunEnd,
    RunRequest,
    RunStatus,
)
from perdure.threads.service import Threads

runs = LangGraphResource("runs")

RUN = THREAD + "/runs/{run_id}"
ACCEPTED = 202
ROLLED_BACK = "rollback"
Record = dict[str, Any]


class RunShape(TypedDict):
    """A run, with its request in `kwargs`."""

    run_id: str
    thread_id: str
    assistant_id: str
    status: RunStatus
    metadata: dict[str, Any]
    kwargs: dict[str, Any]
    multitask_strategy: MultitaskStrategy
    created_at: str
    updated_at: str


FIELDS = tuple(RunShape.__annotations__)


def show_run(run: Run) -> RunShape:
    return {
        "run_id": run.run_id,
        "thread_id": run.thread_id,
        "assistant_id": run.assistant_id,
        "status": run.status,
        "metadata": run.metadata,
        "kwargs": show_kwargs(run),
        "multitask_strategy": run.multitask_strategy,
        "created_at": iso(run.created_at),
        "updated_at": iso(run.updated_at),
    }


def show_kwargs(run: Run) -> dict[str, Any]:
    """Return the request of a run; the options of its graph are at the same level as the other fields."""
    kwargs: dict[str, Any] = msgspec.to_builtins(run.kwargs)
    kwargs.pop("traceparent", None)
    options = kwargs.pop("options", None) or {}
    return {**kwargs, **options, "webhook": run.webhook, "on_disconnect": run.on_disconnect}


def build_url(run: Run, rest: str = "") -> str:
    return f"/threads/{run.thread_id}/runs/{run.run_id}{rest}"


def locations(run: Run, rest: str) -> dict[str, str]:
    """Build the headers that name a run, and where to continue after a lost connection."""
    return {"Location": build_url(run, rest), "Content-Location": build_url(run)}


# --- create -----------------------------------------------------------------------------------------------


@before
async def authorize_create(request: Authorization) -> None:
    await authorize_run(request, request.call.body, request.call.path.get("thread_id"))


async def authorize_run(request: Authorization, body: RunBody, thread_id: str | None) -> None:
    value: dict[str, Any] = {
        "thread_id": uuid_or_none(thread_id),
        "assistant_id": body.assistant_id,
        "run_id": None,
        "status": "pending",
        "metadata": dict(body.metadata or {}),
        "multitask_strategy": body.multitask_strategy or "enqueue",
        "if_not_exists": body.if_not_exists or "reject",
        "after_seconds": body.after_seconds or 0,
        "kwargs": {"input": body.input, "config": body.config or {}, "context": body.context},
    }
    filter = await request.authorize_create("threads", "create_run", value)
    if thread_id is not None and filter and not await _creates_thread(request, body, thread_id):
        await request.check_thread(thread_id, filter)
    await request.authorize_execution(body.assistant_id)
    body.metadata = value["metadata"]


async def _creates_thread(request: Authorization, body: RunBody, thread_id: str) -> bool:
    if body.if_not_exists != "create":
        return False
    try:
        await request.call.threads.get_thread(thread_id)
    except NotFound:
        return True
    return False


async def created(call: Call, body: RunBody | None = None, thread_id: str | None = None) -> Run:
    """Create the run of a body, on the given thread or the path's thread, if any."""
    request = await _request(call, call.body if body is None else body, thread_id)
    async with _known_graphs(call, [request]):
        return await call.threads.create_run(request, idempotency_key=get_idempotency_key(call))


@asynccontextmanager
async def created_to_follow(call: Call) -> AsyncIterator[Run]:
    """Create the run of the call's body. The caller starts reading its stream inside the context."""
    request = await _request(call, call.body, None)
    async with AsyncExitStack() as stack:
        async with _known_graphs(call, [request]):
            creating = call.threads.followed_run(request, idempotency_key=get_idempotency_key(call))
            run = await stack.enter_async_context(creating)
        yield run


async def _request(call: Call, body: RunBody, thread_id: str | None) -> RunRequest:
    thread_id = await _free_thread(call, body, thread_id or call.path.get("thread_id"))
    return with_caller(call, build_run_request(body, thread_id))


async def _free_thread(call: Call, body: RunBody, thread_id: str | None) -> str | None:
    """Return the thread of a new run. A run must not wait for another run on its own thread.

    A `RemoteGraph` node on its caller's own server would cause such a wait: it forwards the caller's
    configuration with the caller's thread. Its run gets a thread derived from the caller's thread.
    """
    asking = (body.config or {}).get("metadata")
    run_id = asking.get("run_id") if isinstance(asking, dict) else None
    if thread_id is None or body.if_not_exists != "create" or not isinstance(run_id, str):
        return thread_id
    with contextlib.suppress(NotFound):
        run = await call.threads.get_run(run_id, thread_id)
        if run.status in LIVE_STATUSES:
            return None if run.temporary else str(uuid5(UUID(thread_id), body.assistant_id))
    return thread_id


@asynccontextmanager
async def _known_graphs(call: Call, requests: Sequence[RunRequest]) -> AsyncIterator[None]:
    """Report an unknown graph name as an invalid value, not as a missing object."""
    try:
        yield
    except NotFound:
        names = {request.assistant_id for request in requests if not is_uuid(request.assistant_id)}
        for name in sorted(names.difference(await call.assistants.resolve(sorted(names)))):
            raise InvalidInput(f"assistant_id {name!r} is neither a UUID nor the name of a graph") from None
        raise


CREATING: dict[str, Any] = {
    "rule": authorize_create,
    "scope": "write",
    "body": RunBody,
    "errors": (BadRequest, NotFound, Conflict),
}
"""Shared by the routes that create a run."""


@runs.route("POST", "/runs", summary="Create a run on a temporary thread", answer=Record, **CREATING)
@runs.route("POST", THREAD + "/runs", summary="Create a run on a thread", answer=Record, **CREATING)
async def create_run(call: Call) -> Response:
    run = await created(call)
    return answer(show_run(run), headers={"Content-Location": build_url(run)})


@runs.route(
    "POST",
    "/runs/wait",
    summary="Create a run on a temporary thread and wait for its final values",
    answer=Any,
    **CREATING,
)
@runs.route(
    "POST",
    THREAD + "/runs/wait",
    summary="Create a run on a thread and wait for its final values; blank lines come before them",
    answer=Any,
    **CREATING,
)
async def create_and_wait(call: Call) -> Response:
    run = await created(call)
    return FinalValues(
        call,
        new_final_values(call.threads, run.run_id),
        headers=locations(run, "/join"),
        on_disconnect=cancel_on_disconnect(call.threads, run.run_id, run.on_disconnect == "cancel"),
    )


@before
async def _authorize_batch(request: Authorization) -> None:
    for body in request.call.body:
        await authorize_run(request, body, check_uuid_or_none(body.thread_id, "thread_id"))


@runs.route(
    "POST",
    "/runs/batch",
    rule=_authorize_batch,
    scope="write",
    summary="Create many runs, all of them or none",
    body=Batch,
    answer=list[Record],
    errors=(BadRequest, NotFound, Conflict),
)
async def create_batch(call: Call) -> Response:
    requests = [with_caller(call, batch_request(body)) for body in call.body]
    async with _known_graphs(call, requests):
        return answer([show_run(run) for run in await call.threads.create_runs(requests)])


# --- final values -----------------------------------------------------------------------------------------


class FinalValues(DelayedJson):
    """The values at the end of a run. If the server stops first, the client continues at `Location`."""

    protocol = PROTOCOL

    async def stopped(self, send: Send) -> None:
        """Start the response without an end, so that the client sees a lost connection and reconnects."""
        await self._send(send, b"\n", more=True)


async def new_final_values(threads: Threads, run_id: str) -> Any:
    return show_values(await threads.join_new_run(run_id))


async def _final_values(threads: Threads, run_id: str) -> Any:
    return show_values(await threads.join_thread_of(run_id))


def show_values(end: RunEnd) -> Any:
    """Return the values of the thread with its open interrupts, or the error of the failed run."""
    if end.run.status in FAILURES and end.run.error is not None:
        return {"__error__": show_failure(end.run.error)}
    values = {} if end.values is None else end.values
    if not end.interrupts:
        return values
    interrupts = [{"value": interrupt.value, "id": interrupt.id} for interrupt in end.interrupts]
    return {**(values if isinstance(values, Mapping) else {}), "__interrupt__": interrupts}


class JoinQuery(msgspec.Struct, kw_only=True):
    """Whether to cancel the run when the client disconnects."""

    cancel_on_disconnect: bool = False


@runs.route(
    "GET",
    RUN + "/join",
    rule=on_thread("read"),
    scope="read",
    summary="Wait for the final values of a run; blank lines come before them",
    query=JoinQuery,
    answer=Any,
    errors=(NotFound,),
)
async def join_run(call: Call) -> Response:
    run = await find_joinable(call)
    if call.request.method == "HEAD":
        return answer(None)
    return FinalValues(
        call,
        _final_values(call.threads, run.run_id),
        headers=locations(run, "/join"),
        on_disconnect=cancel_on_disconnect(call.threads, run.run_id, call.query.cancel_on_disconnect),
    )


# --- read -------------------------------------------------------------------------------------------------


async def find_run(call: Call) -> Run:
    """Return the path's run. Raise NotFound if it was rolled back, or failed on a temporary thread."""
    run_id = call.path["run_id"]
    run = await call.threads.get_run(run_id, call.path.get("thread_id"))
    if run.status == ROLLED_BACK or (run.temporary and run.status in FAILURES):
        raise NotFound(f"Run {run_id} not found")
    return run


async def find_joinable(call: Call) -> Run:
    """Return the path's run, also for a while after its deletion with its temporary thread."""
    try:
        return await find_run(call)
    except NotFound:
        with contextlib.suppress(TimeoutError):
            run = (await call.threads.join_run(call.path["run_id"], 0)).run
            on_thread_of_path = call.path.get("thread_id") in (None, run.thread_id)
            if run.temporary and on_thread_of_path and run.status != ROLLED_BACK:
                return run
        raise


@runs.route(
    "GET",
    RUN,
    rule=on_thread("read"),
    scope="read",
    summary="Get a run",
    answer=Record,
    errors=(NotFound,),
)
async def get_run(call: Call) -> Response:
    return answer(show_run(await find_run(call)))


class RunsQuery(msgspec.Struct, kw_only=True):
    """List of a thread's runs, newest first: filter, page and fields."""

    limit: Limit = PAGE
    offset: Offset = 0
    status: str | None = None
    select: Select[str] | None = None


@runs.route(
    "GET",
    THREAD + "/runs",
    rule=on_thread("read"),
    scope="read",
    summary="List the runs of a thread, the newest first",
    query=RunsQuery,
    answer=list[Record],
    errors=(NotFound,),
)
async def list_runs(call: Call) -> Response:
    query: RunsQuery = call.query
    names = query_list(query.select, "select")
    unknown = [name for name in names if name not in FIELDS]
    if unknown:
        raise InvalidInput(f"a run has no field {unknown[0]!r}; it has {', '.join(FIELDS)}")
    status = optional_choice(query.status or None, RUN_STATUSES, "status")
    wanted = RunSearch(call.path["thread_id"], status, query.limit, query.offset, undone=False)
    page = await call.threads.find_runs(wanted)
    return answer([selected(show_run(run), names) for run in page.items])


def query_list(given: Sequence[str] | None, name: str) -> list[str]:
    """Parse a list in a query. Clients send repeated items, commas or JSON."""
    items: list[str] = []
    for text in given or ():
        items += _json_list(text, name) if text.startswith("[") else text.split(",")
    return [item for item in items if item]


def _json_list(text: str, name: str) -> list[str]:
    items = decode_json(text)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise InvalidInput(f"{name} must be a list of strings")
    return items


# --- cancel and delete ------------------------------------------------------------------------------------


class CancelQuery(msgspec.Struct, kw_only=True):
    """How to cancel a run, and whether to wait until it has stopped."""

    wait: bool = False
    action: CancelAction = "interrupt"


@runs.route(
    "POST",
    RUN + "/cancel",
    rule=on_thread("update"),
    scope="write",
    summary="Cancel a run that has not ended",
    query=CancelQuery,
    status=202,
    errors=(NotFound,),
)
async def cancel_run(call: Call) -> Response:
    query: CancelQuery = call.query
    run = await find_run(call)
    try:
        await call.threads.cancel_run(run.run_id, action=query.action)
    except Conflict as error:
        raise NotFound(error.message) from None
    if not query.wait:
        return Response(status_code=ACCEPTED)
    return FinalValues(call, _values_when_stopped(call.threads, run.run_id), headers=locations(run, "/join"))


async def _values_when_stopped(threads: Threads, run_id: str) -> Any:
    """Return the values of the thread after the worker has stopped executing the run."""
    await threads.stopped(run_id)
    return await _final_values(threads, run_id)


class CancelManyQuery(msgspec.Struct, kw_only=True):
    """How to cancel runs."""

    action: CancelAction = "interrupt"


class CancelMany(RequestBody, kw_only=True):
    """The runs to cancel: runs of a thread, or all with a status."""

    thread_id: str | None = None
    run_ids: Annotated[list[str], Meta(max_length=MAX_BATCH)] | None = None
    status: Literal["pending", "running", "all"] | None = None


@before
async def _authorize_cancel(request: Authorization) -> None:
    body: CancelMany = request.call.body
    thread_id = check_uuid_or_none(body.thread_id, "thread_id")
    value: dict[str, Any] = {
        "thread_id": uuid_or_none(thread_id),
        "action": request.call.query.action,
        "metadata": {"run_ids": body.run_ids, "status": body.status},
    }
    filter = await request.authorize("threads", "update", value)
    if filter and thread_id is None:
        raise Forbidden("a user who may see only some runs must cancel them by thread_id and run_ids")
    if thread_id is not None:
        await request.check_thread(thread_id, filter)


@runs.route(
    "POST",
    "/runs/cancel",
    rule=_authorize_cancel,
    scope="write",
    summary="Cancel runs that have not ended, by their ids or by their status",
    body=CancelMany,
    query=CancelManyQuery,
    status=204,
    errors=(NotFound,),
)
async def cancel_runs(call: Call) -> Response:
    body: CancelMany = call.body
    _check_cancel(body)
    cancelled = await call.threads.cancel_runs(
        thread_id=check_uuid_or_none(body.thread_id, "thread_id"),
        run_ids=None if body.run_ids is None else [check_uuid(run_id, "run_id") for run_id in body.run_ids],
        status=body.status,
        action=call.query.action,
    )
    if not cancelled:
        raise NotFound("no runs to cancel: they are unknown or have ended")
    return no_content()


def _check_cancel(body: CancelMany) -> None:
    if body.status is not None:
        if body.thread_id is not None or body.run_ids is not None:
            raise InvalidInput("give either a status, or a thread_id with run_ids, and not both")
    elif body.thread_id is None or not body.run_ids:
        raise InvalidInput("give a status, or a thread_id with run_ids")


@runs.route(
    "DELETE",
    RUN,
    rule=on_thread("delete"),
    scope="write",
    summary="Delete a run with its checkpoints and its stream",
    status=204,
    errors=(NotFound,),
)
async def delete_run(call: Call) -> Response:
    run = await find_run(call)
    await call.threads.delete_run(run.run_id)
    return no_content()
