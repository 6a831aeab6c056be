"""All routes of the LangGraph protocol."""

from __future__ import annotations

from perdure.server.langgraph.a2a import a2a
from perdure.server.langgraph.assistants import assistants
from perdure.server.langgraph.crons import crons
from perdure.server.langgraph.event_streams import event_streams
from perdure.server.langgraph.mcp import mcp
from perdure.server.langgraph.routing import LangGraphRoute
from perdure.server.langgraph.runs import runs
from perdure.server.langgraph.states import states
from perdure.server.langgraph.store import store
from perdure.server.langgraph.streams import streams, thread_streams
from perdure.server.langgraph.threads import threads

_RESOURCES = (
    assistants,
    threads,
    states,
    runs,
    streams,
    thread_streams,
    event_streams,
    crons,
    store,
    mcp,
    a2a,
)

ROUTES: tuple[LangGraphRoute, ...] = tuple(route for resource in _RESOURCES for route in resource.routes)
