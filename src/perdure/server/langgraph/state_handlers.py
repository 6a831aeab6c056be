"""The states of threads: read, changed, and one after the other."""

from __future__ import annotations

from starlette.responses import Response

from perdure.langgraph.views import CheckpointRef
from perdure.server.http.routes import Call
from perdure.server.langgraph import thread_wire
from perdure.server.langgraph.rooms import views_of
from perdure.server.langgraph.stream_frames import STATE_UPDATE
from perdure.server.langgraph.thread_wire import check_state_fields, place_of, shown_state
from perdure.server.langgraph.wire import PAGE, answer
from perdure.server.native.rooms import threads_of


async def _state(
    call: Call, place: CheckpointRef | None, subgraphs: bool, select: list[str] | None
) -> Response:
    check_state_fields(select)
    state = await views_of(call).state(call.path["thread_id"], place, subgraphs=subgraphs)
    return answer(shown_state(state, select))


async def get_state(call: Call) -> Response:
    query: thread_wire.StateQuery = call.query
    return await _state(call, place_of(call.path.get("checkpoint_id")), query.subgraphs, query.select)


async def get_state_at(call: Call) -> Response:
    body: thread_wire.StateBody = call.body
    return await _state(call, place_of(body.checkpoint), bool(body.subgraphs), body.select)


async def update_state(call: Call) -> Response:
    body: thread_wire.StateUpdate = call.body
    place = place_of(body.checkpoint) or place_of(body.checkpoint_id)
    changed = await views_of(call).update_state(
        call.path["thread_id"], body.values, as_node=body.as_node, checkpoint=place
    )
    await _tell(call)
    return answer(changed)


async def _tell(call: Call) -> None:
    """Let whoever follows the thread see its new state."""
    thread_id = call.path["thread_id"]
    state = await views_of(call).state(thread_id, None, subgraphs=False)
    told = {"state": shown_state(state, None), "thread_id": thread_id}
    await threads_of(call).tell_thread(thread_id, STATE_UPDATE, told)


async def post_history(call: Call) -> Response:
    body: thread_wire.HistoryBody = call.body
    check_state_fields(body.select)
    states = await views_of(call).history(
        call.path["thread_id"],
        limit=body.limit or PAGE,
        before=place_of(body.before),
        metadata=body.metadata,
        checkpoint=place_of(body.checkpoint),
    )
    return answer([shown_state(state, body.select) for state in states])


async def get_history(call: Call) -> Response:
    query: thread_wire.HistoryQuery = call.query
    check_state_fields(query.select)
    states = await views_of(call).history(
        call.path["thread_id"], limit=query.limit, before=place_of(query.before)
    )
    return answer([shown_state(state, query.select) for state in states])
