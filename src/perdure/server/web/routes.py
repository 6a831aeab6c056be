"""Routes of the dashboard. Its pages are public, because they hold no data."""

from __future__ import annotations

from perdure.access.model import Me
from perdure.kernel.errors import NotFound
from perdure.server.http.problems import NATIVE
from perdure.server.http.routes import Handler, Route
from perdure.server.web import login, pages
from perdure.service.endpoints import Ok

TAG = "dashboard"


def _leads(path: str) -> Route:
    return Route(
        method="GET",
        path=path,
        handler=pages.lead_to_dashboard,
        protocol=NATIVE,
        scope=None,
        status=307,
        summary="Leads to the dashboard",
        tag=TAG,
    )


def _session(path: str, handler: Handler, answer: type, summary: str) -> Route:
    return Route(
        method="POST",
        path=path,
        handler=handler,
        protocol=NATIVE,
        scope="read",
        answer=answer,
        summary=summary,
        tag=TAG,
    )


HOME = _leads("/")
"""The root route, which is left out if the operator's own application serves this path."""
ROUTES: tuple[Route, ...] = (
    _leads("/ui"),
    Route(
        method="GET",
        path="/ui/{path}",
        takes_rest=True,
        handler=pages.show,
        protocol=NATIVE,
        scope=None,
        answer=str,
        answer_form="text/html",
        errors=(NotFound,),
        opens_in_tab=True,
        summary="A file of the dashboard, or its page",
        tag=TAG,
    ),
    _session(
        "/api/v1/login",
        login.login,
        Me,
        "Start a login of the dashboard: a cookie that only this API is sent",
    ),
    _session("/api/v1/logout", login.logout, Ok, "End the login of the dashboard"),
)
