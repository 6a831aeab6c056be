"""What the handlers of the LangGraph protocol share: the graphs that this process has."""

from __future__ import annotations

from perdure.langgraph.views import GraphViews
from perdure.server.http.routes import Call


def views_of(call: Call) -> GraphViews:
    """The graphs and states of the caller's namespace."""
    return call.app.views_for(call.caller)
