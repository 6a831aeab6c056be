"""The table of the LangGraph protocol."""

from __future__ import annotations

from perdure.server.http.routes import Route
from perdure.server.langgraph.assistant_routes import ASSISTANT_ROUTES
from perdure.server.langgraph.cron_routes import CRON_ROUTES
from perdure.server.langgraph.run_routes import RUN_ROUTES
from perdure.server.langgraph.store_routes import STORE_ROUTES
from perdure.server.langgraph.thread_routes import THREAD_ROUTES

ROUTES: tuple[Route, ...] = (*ASSISTANT_ROUTES, *THREAD_ROUTES, *RUN_ROUTES, *CRON_ROUTES, *STORE_ROUTES)
