"""The routes of the dashboard. Its pages are public, since they hold no data."""

from __future__ import annotations

from perdure.access.endpoints import Ok
from perdure.access.model import Me
from perdure.kernel.errors import NotFound
from perdure.server.http.problems import NATIVE
from perdure.server.http.routes import Route
from perdure.server.web import login, pages

TAG = "dashboard"

HOME = Route(
    method="GET",
    path="/",
    handler=pages.lead_to_dashboard,
    protocol=NATIVE,
    scope=None,
    status=307,
    summary="Leads to the dashboard",
    tag=TAG,
)
"""Left out where the operator's own application has this path."""
ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/ui",
        handler=pages.lead_to_dashboard,
        protocol=NATIVE,
        scope=None,
        status=307,
        summary="Leads to the dashboard",
        tag=TAG,
    ),
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
        summary="The dashboard: a file of it, or its page",
        tag=TAG,
    ),
    Route(
        method="POST",
        path="/api/v1/login",
        handler=login.login,
        protocol=NATIVE,
        scope="read",
        answer=Me,
        summary="Keep the caller's token in a cookie that only this API is sent, for the dashboard",
        tag=TAG,
    ),
    Route(
        method="POST",
        path="/api/v1/logout",
        handler=login.logout,
        protocol=NATIVE,
        scope="read",
        answer=Ok,
        summary="Let the browser forget the token of the dashboard",
        tag=TAG,
    ),
)
