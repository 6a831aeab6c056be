"""The route table of all protocols. The router, the OpenAPI document, scopes and tests derive from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from starlette.types import ASGIApp

from perdure.runtime.app import App, StoreApp
from perdure.runtime.components import Component
from perdure.server.http.application import make_application
from perdure.server.http.mounted import Mounted
from perdure.server.http.routes import Route
from perdure.server.langgraph.protocol import PROTOCOL as LANGGRAPH
from perdure.server.langgraph.routes import ROUTES as LANGGRAPH_ROUTES
from perdure.server.lightning.routes import ROUTES as LIGHTNING_ROUTES
from perdure.server.native.routes import GUIDE, PROBES
from perdure.server.native.routes import ROUTES as NATIVE_ROUTES
from perdure.server.otlp.routes import ROUTES as OTLP_ROUTES
from perdure.server.web.dashboard import HOME
from perdure.server.web.dashboard import ROUTES as WEB_ROUTES

ROUTES: tuple[Route, ...] = (
    *NATIVE_ROUTES,
    *LIGHTNING_ROUTES,
    *LANGGRAPH_ROUTES,
    *OTLP_ROUTES,
    HOME,
    *WEB_ROUTES,
)
LIGHTNING_ONLY: tuple[Route, ...] = (*LIGHTNING_ROUTES, *OTLP_ROUTES, *PROBES)
"""Routes of a server for a third-party store."""


META = frozenset({"/openapi.json", "/info", "/metrics", "/docs", *(route.path for route in GUIDE)})


def build_application(
    app: StoreApp, components: Sequence[Component] = (), *, closed: bool = False
) -> ASGIApp:
    """Build the application with all routes that the app can serve and its project has not disabled.

    If it is `closed`, a caller needs a key or a token even where none exists.
    """
    if not isinstance(app, App):
        return make_application(app, LIGHTNING_ONLY, components, closed=closed)
    own = app.http.app
    mounted = None if own is None else Mounted(own, LANGGRAPH, public=app.http.app_is_public)
    routes = _enabled(app.http.disabled)
    if mounted is not None:
        app.reloads.add("http.app", lambda _: mounted.replace(app.http.app))
        # The root belongs to the operator's application.
        routes = tuple(route for route in routes if route is not HOME)
    return make_application(app, routes, components, mounted, closed=closed)


def _enabled(disabled: Collection[str]) -> tuple[Route, ...]:
    """Return the routes except those that `http.disable_…` of a `langgraph.json` names."""
    web = () if "ui" in disabled else (HOME, *WEB_ROUTES)
    theirs = [route for route in LANGGRAPH_ROUTES if route.group not in disabled]
    others = (*NATIVE_ROUTES, *LIGHTNING_ROUTES, *OTLP_ROUTES, *web)
    return (*(route for route in others if "meta" not in disabled or route.path not in META), *theirs)
