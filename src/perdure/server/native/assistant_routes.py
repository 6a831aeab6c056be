"""The native routes of assistants."""

from __future__ import annotations

from perdure.assistants.records import Assistant
from perdure.client import native_wire as wire
from perdure.client import run_wire
from perdure.kernel.errors import BadQuery, Conflict, NotFound, NotSupported
from perdure.kernel.pages import Page
from perdure.server.native import assistant_handlers as handlers
from perdure.server.native.declare import declaring

_assistants = declaring("assistants")

ASSISTANT_ROUTES = (
    _assistants(
        "GET",
        "/assistants",
        handlers.list_assistants,
        "read",
        "List assistants, the newest first",
        query=run_wire.AssistantQuery,
        answer=Page[Assistant],
        errors=(BadQuery, NotSupported),
    ),
    _assistants(
        "POST",
        "/assistants",
        handlers.create_assistant,
        "write",
        "Make an assistant of an agent; a repeated Idempotency-Key gives the first one",
        body=run_wire.NewAssistant,
        answer=Assistant,
        status=201,
        errors=(NotFound, Conflict, NotSupported),
    ),
    _assistants(
        "GET",
        "/assistants/{assistant_id}",
        handlers.get_assistant,
        "read",
        "An assistant",
        answer=Assistant,
        errors=(NotFound, NotSupported),
    ),
    _assistants(
        "PATCH",
        "/assistants/{assistant_id}",
        handlers.update_assistant,
        "write",
        "Make the next version of an assistant",
        body=run_wire.AssistantPatch,
        answer=Assistant,
        errors=(NotFound, NotSupported),
    ),
    _assistants(
        "DELETE",
        "/assistants/{assistant_id}",
        handlers.delete_assistant,
        "write",
        "Remove an assistant, unless it is an agent's own",
        status=204,
        errors=(NotFound, Conflict, NotSupported),
    ),
    _assistants(
        "GET",
        "/assistants/{assistant_id}/versions",
        handlers.list_versions,
        "read",
        "What an assistant was in its versions, the newest first",
        query=wire.PageQuery,
        answer=wire.Items[Assistant],
        errors=(NotFound, NotSupported),
    ),
    _assistants(
        "POST",
        "/assistants/{assistant_id}/latest",
        handlers.set_latest,
        "write",
        "Go back, or forth, to a version",
        body=run_wire.Latest,
        answer=Assistant,
        errors=(NotFound, NotSupported),
    ),
)
