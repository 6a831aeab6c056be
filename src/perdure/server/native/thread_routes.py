"""The native routes of threads and their states."""

from __future__ import annotations

from perdure.client import native_wire as wire
from perdure.client import run_wire
from perdure.kernel.errors import BadQuery, Conflict, NotFound, NotSupported
from perdure.kernel.pages import Page
from perdure.server.http.sse import MEDIA_TYPE
from perdure.server.native import thread_handlers as handlers
from perdure.server.native.declare import declaring
from perdure.threads.records import Checkpoint, Lifetime, Run, Thread

_threads = declaring("threads")

_THREADS = (
    _threads(
        "GET",
        "/threads",
        handlers.list_threads,
        "read",
        "List threads, the newest first",
        query=run_wire.ThreadQuery,
        answer=Page[Thread],
        errors=(BadQuery, NotSupported),
    ),
    _threads(
        "POST",
        "/threads",
        handlers.create_thread,
        "write",
        "Make a thread",
        body=run_wire.NewThread,
        answer=Thread,
        status=201,
        errors=(Conflict, NotSupported),
    ),
    _threads(
        "GET",
        "/threads/{thread_id}",
        handlers.get_thread,
        "read",
        "A thread",
        answer=Thread,
        errors=(NotFound, NotSupported),
    ),
    _threads(
        "PATCH",
        "/threads/{thread_id}",
        handlers.update_thread,
        "write",
        "Change a thread's metadata or config",
        body=run_wire.ThreadPatch,
        answer=Thread,
        errors=(NotFound, NotSupported),
    ),
    _threads(
        "DELETE",
        "/threads/{thread_id}",
        handlers.delete_thread,
        "write",
        "Remove a thread with its runs, states and streams; traces stay",
        status=204,
        errors=(NotFound, NotSupported),
    ),
    _threads(
        "GET",
        "/threads/{thread_id}/lifetime",
        handlers.get_lifetime,
        "read",
        "How long a thread lives; null is for ever",
        answer=Lifetime | None,
        errors=(NotFound, NotSupported),
    ),
    _threads(
        "POST",
        "/threads/prune",
        handlers.prune_threads,
        "write",
        "Remove threads, or all of their states but the latest",
        body=run_wire.Prune,
        answer=run_wire.Pruned,
        errors=(NotSupported,),
    ),
    _threads(
        "POST",
        "/threads/{thread_id}/copy",
        handlers.copy_thread,
        "write",
        "Make a thread with the same states",
        answer=Thread,
        status=201,
        errors=(NotFound, NotSupported),
    ),
)

_STATES = (
    _threads(
        "GET",
        "/threads/{thread_id}/state",
        handlers.get_state,
        "read",
        "A state of a thread, the latest if none is named; null while there is none",
        query=run_wire.StateQuery,
        answer=Checkpoint | None,
        errors=(NotFound, NotSupported),
    ),
    _threads(
        "POST",
        "/threads/{thread_id}/state",
        handlers.update_state,
        "write",
        "Keep another state of a thread that is not busy",
        body=run_wire.NewState,
        answer=Checkpoint,
        status=201,
        errors=(NotFound, Conflict, NotSupported),
    ),
    _threads(
        "GET",
        "/threads/{thread_id}/history",
        handlers.history,
        "read",
        "The states of a thread, the newest first",
        query=run_wire.HistoryQuery,
        answer=wire.Items[Checkpoint],
        errors=(BadQuery, NotFound, NotSupported),
    ),
    _threads(
        "GET",
        "/threads/{thread_id}/runs",
        handlers.list_runs,
        "read",
        "List the runs of a thread, the newest first",
        query=run_wire.ThreadRunQuery,
        answer=Page[Run],
        errors=(BadQuery, NotFound, NotSupported),
    ),
    _threads(
        "GET",
        "/threads/{thread_id}/stream",
        handlers.stream,
        "read",
        "The events of all runs of a thread as server-sent events, without end",
        query=run_wire.ThreadStreamQuery,
        answer=str,
        answer_form=MEDIA_TYPE,
        errors=(NotFound, NotSupported),
    ),
)

THREAD_ROUTES = (*_THREADS, *_STATES)
