"""The LangGraph protocol's routes of threads and their states."""

from __future__ import annotations

from typing import Any

from perdure.kernel.errors import BadRequest, Conflict, NotFound, NotSupported
from perdure.server.langgraph import state_handlers as states
from perdure.server.langgraph import thread_handlers as handlers
from perdure.server.langgraph import thread_wire as wire
from perdure.server.langgraph.declare import declaring
from perdure.server.langgraph.shapes import ChangeShape, StateShape, ThreadShape

_threads = declaring("threads")
_ONE = "/threads/{thread_id}"

_RECORDS = (
    _threads(
        "POST",
        "/threads",
        handlers.create_thread,
        "write",
        "Make a thread",
        body=wire.ThreadCreate,
        answer=ThreadShape,
        errors=(NotFound, Conflict, NotSupported),
    ),
    _threads(
        "POST",
        "/threads/search",
        handlers.search_threads,
        "read",
        "Search threads, the newest first",
        body=wire.ThreadSearch,
        answer=list[dict[str, Any]],
        errors=(NotSupported,),
    ),
    _threads(
        "POST",
        "/threads/count",
        handlers.count_threads,
        "read",
        "Count threads",
        body=wire.ThreadCount,
        answer=int,
        errors=(NotSupported,),
    ),
    _threads(
        "POST",
        "/threads/prune",
        handlers.prune_threads,
        "write",
        "Remove threads, or all of their states but the latest",
        body=wire.ThreadPrune,
        answer=dict[str, int],
        errors=(NotSupported,),
    ),
    _threads(
        "GET",
        _ONE,
        handlers.get_thread,
        "read",
        "A thread",
        query=wire.ThreadQuery,
        answer=ThreadShape,
        errors=(NotFound, NotSupported),
    ),
    _threads(
        "PATCH",
        _ONE,
        handlers.update_thread,
        "write",
        "Merge into a thread's metadata; Prefer: return=minimal gives no body",
        body=wire.ThreadPatch,
        answer=ThreadShape,
        errors=(NotFound, NotSupported),
    ),
    _threads(
        "DELETE",
        _ONE,
        handlers.delete_thread,
        "write",
        "Remove a thread with its runs and states",
        status=204,
        errors=(NotFound, NotSupported),
    ),
    _threads(
        "POST",
        _ONE + "/copy",
        handlers.copy_thread,
        "write",
        "Make a thread with the same states",
        answer=ThreadShape,
        errors=(NotFound, NotSupported),
    ),
)

_STATES = (
    *(
        _threads(
            "GET",
            _ONE + path,
            states.get_state,
            "read",
            "A state of a thread, the latest if none is named",
            query=wire.StateQuery,
            answer=StateShape,
            errors=(NotFound, NotSupported),
        )
        for path in ("/state", "/state/{checkpoint_id}")
    ),
    _threads(
        "POST",
        _ONE + "/state/checkpoint",
        states.get_state_at,
        "read",
        "A state of a thread, or of a graph within its graph",
        body=wire.StateBody,
        answer=StateShape,
        errors=(NotFound, NotSupported),
    ),
    _threads(
        "POST",
        _ONE + "/state",
        states.update_state,
        "write",
        "Keep another state of a thread that is not busy, as if a node had written it",
        body=wire.StateUpdate,
        answer=ChangeShape,
        errors=(BadRequest, NotFound, Conflict, NotSupported),
    ),
    _threads(
        "POST",
        _ONE + "/history",
        states.post_history,
        "read",
        "The states of a thread, the newest first",
        body=wire.HistoryBody,
        answer=list[StateShape],
        errors=(NotFound, NotSupported),
    ),
    _threads(
        "GET",
        _ONE + "/history",
        states.get_history,
        "read",
        "The states of a thread, the newest first",
        query=wire.HistoryQuery,
        answer=list[StateShape],
        errors=(NotFound, NotSupported),
    ),
)

THREAD_ROUTES = (*_RECORDS, *_STATES)
