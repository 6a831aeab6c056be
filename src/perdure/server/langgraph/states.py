"""States of threads in the LangGraph protocol: read, update, and list as history."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import msgspec
from starlette.responses import Response

from perdure.kernel.errors import AgentUnavailable, BadRequest, Conflict, InvalidInput, NotFound
from perdure.langgraph.views import CheckpointRef
from perdure.server.http.routes import Call
from perdure.server.langgraph.protocol import (
    PAGE,
    CheckpointBody,
    InterruptShape,
    Limit,
    Metadata,
    RequestBody,
    Select,
    answer,
    get_graphs,
)
from perdure.server.langgraph.routing import LangGraphResource, on_thread
from perdure.server.langgraph.threads import THREAD

states = LangGraphResource("threads")

STATE_UPDATE = "state_update"
"""Event for followers of a thread about a state change outside its runs."""
FIELDS = (
    "values",
    "next",
    "tasks",
    "checkpoint",
    "metadata",
    "created_at",
    "parent_checkpoint",
    "interrupts",
    "checkpoint_id",
    "parent_checkpoint_id",
)


class CheckpointShape(TypedDict):
    """A checkpoint of a thread."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    checkpoint_map: NotRequired[dict[str, str] | None]


class StateShape(TypedDict):
    """A state of a thread."""

    values: Any
    next: list[str]
    tasks: list[dict[str, Any]]
    metadata: dict[str, Any] | None
    created_at: str | None
    checkpoint: CheckpointShape | None
    parent_checkpoint: CheckpointShape | None
    interrupts: list[InterruptShape]
    checkpoint_id: str | None
    parent_checkpoint_id: str | None


class CheckpointOrConfig(CheckpointBody, kw_only=True):
    """A checkpoint, as an object or inside a config."""

    configurable: dict[str, Any] | None = None


def checkpoint_ref(given: str | CheckpointOrConfig | None) -> CheckpointRef | None:
    """Convert a checkpoint that a client names by id, as an object, or by a config."""
    if given is None:
        return None
    if isinstance(given, str):
        return CheckpointRef(checkpoint_id=given)
    checkpoint: CheckpointBody = given
    if given.configurable is not None:
        try:
            checkpoint = msgspec.convert(given.configurable, CheckpointBody)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"configurable: {error}") from None
    return CheckpointRef(
        checkpoint_id=checkpoint.checkpoint_id,
        checkpoint_ns=checkpoint.checkpoint_ns or "",
        checkpoint_map=checkpoint.checkpoint_map,
    )


def check_fields(names: list[str] | None) -> None:
    """Refuse an unknown field of states. `values.key` is one key of the values."""
    for name in names or ():
        if name not in FIELDS and not name.startswith("values."):
            fields = ", ".join(FIELDS)
            raise InvalidInput(f"select: a state has no {name[:64]!r}; it has {fields} and values.<key>")


def shown(state: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
    """Return a state with the requested fields."""
    if not names:
        return state
    fields = {name: state[name] for name in names if name in FIELDS}
    keys = [name.partition(".")[2] for name in names if name.startswith("values.")]
    if keys and "values" not in names:
        values = state["values"] if isinstance(state["values"], dict) else {}
        fields["values"] = {key: values[key] for key in keys if key in values}
    return fields


# --- one state --------------------------------------------------------------------------------------------


async def _state(
    call: Call, checkpoint: CheckpointRef | None, subgraphs: bool, select: list[str] | None
) -> Response:
    check_fields(select)
    state = await get_graphs(call).state(call.path["thread_id"], checkpoint, subgraphs=subgraphs)
    return answer(shown(state, select))


class StateQuery(msgspec.Struct, kw_only=True):
    """Whether to show the states of subgraphs, and the fields to show."""

    subgraphs: bool = False
    select: Select[str] | None = None


@states.route(
    "GET",
    THREAD + "/state/{checkpoint_id}",
    rule=on_thread("read"),
    scope="read",
    summary="Get the state of a thread at a checkpoint",
    query=StateQuery,
    answer=StateShape,
    errors=(NotFound, AgentUnavailable),
)
@states.route(
    "GET",
    THREAD + "/state",
    rule=on_thread("read"),
    scope="read",
    summary="Get the latest state of a thread",
    query=StateQuery,
    answer=StateShape,
    errors=(NotFound, AgentUnavailable),
)
async def get_state(call: Call) -> Response:
    query: StateQuery = call.query
    return await _state(call, checkpoint_ref(call.path.get("checkpoint_id")), query.subgraphs, query.select)


class StateRequest(RequestBody, kw_only=True):
    """The state to read."""

    checkpoint: CheckpointOrConfig
    subgraphs: bool | None = None
    select: Select[str] | None = None


@states.route(
    "POST",
    THREAD + "/state/checkpoint",
    rule=on_thread("read"),
    scope="read",
    summary="Get a state of a thread, or of a subgraph",
    body=StateRequest,
    answer=StateShape,
    errors=(NotFound, AgentUnavailable),
)
async def get_state_at(call: Call) -> Response:
    body: StateRequest = call.body
    return await _state(call, checkpoint_ref(body.checkpoint), bool(body.subgraphs), body.select)


class ChangeShape(TypedDict):
    """The checkpoint of a state that was updated."""

    checkpoint: CheckpointShape
    configurable: dict[str, Any]
    checkpoint_id: str


class StateUpdate(RequestBody, kw_only=True):
    """Values to write as a node, after a checkpoint."""

    values: dict[str, Any] | list[Any] | None = None
    as_node: str | None = None
    checkpoint: CheckpointOrConfig | None = None
    checkpoint_id: str | None = None


@states.route(
    "POST",
    THREAD + "/state",
    rule=on_thread("update"),
    scope="write",
    summary="Update the state of a thread that is not busy, as if a node had written it",
    body=StateUpdate,
    answer=ChangeShape,
    errors=(BadRequest, NotFound, Conflict, AgentUnavailable),
)
async def update_state(call: Call) -> Response:
    body: StateUpdate = call.body
    checkpoint = checkpoint_ref(body.checkpoint) or checkpoint_ref(body.checkpoint_id)
    changed = await get_graphs(call).update_state(
        call.path["thread_id"], body.values, as_node=body.as_node, checkpoint=checkpoint
    )
    await _publish_state(call)
    return answer(changed)


async def _publish_state(call: Call) -> None:
    """Send the new state to followers of the thread."""
    thread_id = call.path["thread_id"]
    state = await get_graphs(call).state(thread_id, None, subgraphs=False)
    await call.threads.tell_thread(thread_id, STATE_UPDATE, {"state": state, "thread_id": thread_id})


# --- history ----------------------------------------------------------------------------------------------


class HistoryBody(RequestBody, kw_only=True):
    """List of a thread's states, newest first."""

    limit: Limit | None = None
    before: str | CheckpointOrConfig | None = None
    metadata: Metadata | None = None
    checkpoint: CheckpointOrConfig | None = None
    select: Select[str] | None = None


@states.route(
    "POST",
    THREAD + "/history",
    rule=on_thread("read"),
    scope="read",
    summary="List the states of a thread, the newest first",
    body=HistoryBody,
    answer=list[StateShape],
    errors=(NotFound, AgentUnavailable),
)
async def post_history(call: Call) -> Response:
    return await _history(call, call.body)


class HistoryQuery(msgspec.Struct, kw_only=True):
    """List of a thread's states, newest first."""

    limit: Limit = PAGE
    before: str | None = None
    select: Select[str] | None = None


@states.route(
    "GET",
    THREAD + "/history",
    rule=on_thread("read"),
    scope="read",
    summary="List the states of a thread, the newest first",
    query=HistoryQuery,
    answer=list[StateShape],
    errors=(NotFound, AgentUnavailable),
)
async def get_history(call: Call) -> Response:
    query: HistoryQuery = call.query
    return await _history(call, HistoryBody(limit=query.limit, before=query.before, select=query.select))


async def _history(call: Call, wanted: HistoryBody) -> Response:
    check_fields(wanted.select)
    snapshots = await get_graphs(call).history(
        call.path["thread_id"],
        limit=wanted.limit or PAGE,
        before=checkpoint_ref(wanted.before),
        metadata=wanted.metadata,
        checkpoint=checkpoint_ref(wanted.checkpoint),
    )
    return answer([shown(snapshot, wanted.select) for snapshot in snapshots])
