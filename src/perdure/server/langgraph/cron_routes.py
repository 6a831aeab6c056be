"""The LangGraph protocol's routes of crons."""

from __future__ import annotations

from typing import Any

from perdure.kernel.errors import BadRequest, NotFound, NotSupported
from perdure.server.langgraph import cron_handlers as handlers
from perdure.server.langgraph import cron_wire as wire
from perdure.server.langgraph.declare import declaring

_crons = declaring("crons")
_ONE = "/runs/crons/{cron_id}"

CRON_ROUTES = (
    _crons(
        "POST",
        "/runs/crons",
        handlers.create_cron,
        "write",
        "Make a cron whose runs get threads of their own",
        body=wire.CronCreate,
        answer=dict[str, Any],
        errors=(BadRequest, NotFound, NotSupported),
    ),
    _crons(
        "POST",
        "/threads/{thread_id}/runs/crons",
        handlers.create_thread_cron,
        "write",
        "Make a cron whose runs are on a thread",
        body=wire.CronCreate,
        answer=dict[str, Any],
        errors=(BadRequest, NotFound, NotSupported),
    ),
    _crons(
        "POST",
        "/runs/crons/search",
        handlers.search_crons,
        "read",
        "Search crons, the newest first",
        body=wire.CronSearch,
        answer=list[dict[str, Any]],
        errors=(NotSupported,),
    ),
    _crons(
        "POST",
        "/runs/crons/count",
        handlers.count_crons,
        "read",
        "Count crons",
        body=wire.CronCount,
        answer=int,
        errors=(NotSupported,),
    ),
    _crons(
        "GET",
        _ONE,
        handlers.get_cron,
        "read",
        "A cron",
        answer=dict[str, Any],
        errors=(NotFound, NotSupported),
    ),
    _crons(
        "PATCH",
        _ONE,
        handlers.update_cron,
        "write",
        "Change a cron, pause it or let it go on",
        body=wire.CronPatch,
        answer=dict[str, Any],
        errors=(BadRequest, NotFound, NotSupported),
    ),
    _crons(
        "DELETE",
        _ONE,
        handlers.delete_cron,
        "write",
        "Remove a cron; its runs stay",
        status=204,
        errors=(NotFound, NotSupported),
    ),
)
