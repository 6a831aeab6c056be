"""What the handlers of the LangGraph door share: the graphs that this process has."""

from __future__ import annotations

from perdure.protocols.http.routes import Call
from perdure.runtime.graph_views import GraphViews


def views_of(call: Call) -> GraphViews:
    """The graphs and states of the caller's namespace."""
    return call.app.views_for(call.caller)
