"""The table of what each route of the LangGraph protocol asks of the operator's own auth.

A route that is not in it is closed while there is such auth.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from perdure.kernel.errors import Forbidden
from perdure.server.http.routes import Call, Handler
from perdure.server.langgraph.assistant_handlers import search_assistants
from perdure.server.langgraph.assistant_wire import AssistantSearch
from perdure.server.langgraph.auth_pass import Authorization
from perdure.server.langgraph.auth_rules import (
    Rule,
    cancel_runs,
    copy_thread,
    create_assistant,
    create_batch,
    create_cron,
    create_run,
    create_thread,
    delete_assistant,
    join_run,
    on_assistant,
    on_cron,
    on_thread,
    prune_threads,
    update_assistant,
    update_cron,
    update_thread,
)
from perdure.server.langgraph.auth_search import counting, get_item, on_store, searching
from perdure.server.langgraph.cron_handlers import search_crons
from perdure.server.langgraph.cron_wire import CronSearch
from perdure.server.langgraph.thread_handlers import search_threads
from perdure.server.langgraph.thread_wire import ThreadSearch

_ASSISTANT = "/assistants/{assistant_id}"
_THREAD = "/threads/{thread_id}"
_RUN = _THREAD + "/runs/{run_id}"
_CRON = "/runs/crons/{cron_id}"

RULES: dict[str, Rule] = {
    "POST /assistants": create_assistant,
    "POST /assistants/search": searching("assistants"),
    "POST /assistants/count": counting("assistants", AssistantSearch, search_assistants),
    f"GET {_ASSISTANT}": on_assistant("read"),
    f"PATCH {_ASSISTANT}": update_assistant,
    f"DELETE {_ASSISTANT}": delete_assistant,
    f"POST {_ASSISTANT}/versions": on_assistant("read"),
    f"POST {_ASSISTANT}/latest": on_assistant("update"),
    f"GET {_ASSISTANT}/graph": on_assistant("read"),
    f"GET {_ASSISTANT}/schemas": on_assistant("read"),
    f"GET {_ASSISTANT}/subgraphs": on_assistant("read"),
    f"GET {_ASSISTANT}/subgraphs/{{namespace}}": on_assistant("read"),
    "POST /threads": create_thread,
    "POST /threads/search": searching("threads"),
    "POST /threads/count": counting("threads", ThreadSearch, search_threads),
    "POST /threads/prune": prune_threads,
    f"GET {_THREAD}": on_thread("read"),
    f"PATCH {_THREAD}": update_thread,
    f"DELETE {_THREAD}": on_thread("delete"),
    f"POST {_THREAD}/copy": copy_thread,
    f"GET {_THREAD}/state": on_thread("read"),
    f"GET {_THREAD}/state/{{checkpoint_id}}": on_thread("read"),
    f"POST {_THREAD}/state/checkpoint": on_thread("read"),
    f"POST {_THREAD}/state": on_thread("update"),
    f"POST {_THREAD}/history": on_thread("read"),
    f"GET {_THREAD}/history": on_thread("read"),
    f"GET {_THREAD}/stream": on_thread("read"),
    f"POST {_THREAD}/stream/events": on_thread("read"),
    f"POST {_THREAD}/commands": on_thread("update"),
    f"POST {_THREAD}/runs": create_run,
    f"POST {_THREAD}/runs/stream": create_run,
    f"POST {_THREAD}/runs/wait": create_run,
    f"GET {_THREAD}/runs": on_thread("read"),
    f"GET {_RUN}": on_thread("read"),
    f"GET {_RUN}/join": on_thread("read"),
    f"GET {_RUN}/stream": on_thread("read"),
    f"POST {_RUN}/cancel": on_thread("update"),
    f"DELETE {_RUN}": on_thread("delete"),
    "GET /runs/{run_id}/stream": join_run,
    "POST /runs": create_run,
    "POST /runs/stream": create_run,
    "POST /runs/wait": create_run,
    "POST /runs/batch": create_batch,
    "POST /runs/cancel": cancel_runs,
    "POST /runs/crons": create_cron,
    f"POST {_THREAD}/runs/crons": create_cron,
    "POST /runs/crons/search": searching("crons"),
    "POST /runs/crons/count": counting("crons", CronSearch, search_crons),
    f"GET {_CRON}": on_cron("read"),
    f"PATCH {_CRON}": update_cron,
    f"DELETE {_CRON}": on_cron("delete"),
    "PUT /store/items": on_store("put"),
    "GET /store/items": get_item,
    "DELETE /store/items": on_store("delete"),
    "POST /store/items/search": on_store("search", "namespace_prefix"),
    "POST /store/namespaces": on_store("list_namespaces", "prefix"),
}


def guarded(method: str, path: str, handler: Handler) -> Handler:
    """The handler, behind the operator's own auth where there is one."""
    rule = RULES.get(f"{method} {path}")

    @wraps(handler)
    async def asked(call: Call) -> Any:
        auth = call.app.auth
        if auth is None:
            return await handler(call)
        if rule is None:
            raise Forbidden(f"nobody has said who may ask for {method} {path}")
        return await rule(Authorization(call, auth), handler)

    return asked
