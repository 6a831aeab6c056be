"""The native routes of the outbox."""

from __future__ import annotations

from perdure.client import run_wire
from perdure.kernel.errors import BadQuery, Conflict, NotFound, NotSupported
from perdure.kernel.pages import Page
from perdure.outbox.model import Effect
from perdure.server.native import outbox_handlers as handlers
from perdure.server.native.declare import declaring

_outbox = declaring("outbox")

OUTBOX_ROUTES = (
    _outbox(
        "GET",
        "/outbox",
        handlers.list_effects,
        "read",
        "List effects without their bodies, the newest first",
        query=run_wire.OutboxQuery,
        answer=Page[Effect],
        errors=(BadQuery, NotSupported),
    ),
    _outbox(
        "GET",
        "/outbox/{effect_id}",
        handlers.get_effect,
        "read",
        "An effect with its body",
        answer=Effect,
        errors=(NotFound, NotSupported),
    ),
    _outbox(
        "POST",
        "/outbox/{effect_id}/retry",
        handlers.retry_effect,
        "write",
        "Deliver an effect again that was not delivered",
        answer=Effect,
        errors=(NotFound, Conflict, NotSupported),
    ),
)
