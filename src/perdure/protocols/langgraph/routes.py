"""The table of the LangGraph door."""

from __future__ import annotations

from perdure.protocols.http.routes import Route
from perdure.protocols.langgraph.assistant_routes import ASSISTANT_ROUTES
from perdure.protocols.langgraph.cron_routes import CRON_ROUTES
from perdure.protocols.langgraph.run_routes import RUN_ROUTES
from perdure.protocols.langgraph.store_routes import STORE_ROUTES
from perdure.protocols.langgraph.thread_routes import THREAD_ROUTES

ROUTES: tuple[Route, ...] = (*ASSISTANT_ROUTES, *THREAD_ROUTES, *RUN_ROUTES, *CRON_ROUTES, *STORE_ROUTES)
