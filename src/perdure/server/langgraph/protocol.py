"""Errors of the LangGraph protocol, as `langgraph_sdk` reads them, and authentication of callers."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from perdure.kernel.checks import check_text
from perdure.kernel.errors import BadBody, BadQuery, PerdureError
from perdure.langgraph.custom_auth import User
from perdure.runtime.app import StoreApp
from perdure.server.http.bodies import encode
from perdure.server.http.mounted import USER
from perdure.server.http.problems import build_headers
from perdure.server.http.routes import Call
from perdure.service.callers import Caller

UNPROCESSABLE = 422


class LangGraphProtocol:
    """Error responses and authentication of the LangGraph routes."""

    name = "langgraph"

    def refuse(self, error: PerdureError, request_id: str, request: Request) -> Response:
        """Build the error as the SDK reads it: its message in `detail`, plus its code."""
        body = {"detail": _detail(error), "code": error.code}
        # Here an unknown filter or sort key is a field with a wrong value.
        status = UNPROCESSABLE if isinstance(error, BadQuery) else error.http_status
        return Response(encode(body), status, build_headers(error), "application/json")

    async def admit(self, request: Request, app: StoreApp) -> Caller | None:
        """Return the caller that custom auth authenticates; None without custom auth."""
        if app.auth is None:
            return None
        user = await app.auth.authenticate(request)
        request.scope[USER] = user
        actor = check_text(f"user:{user.identity}", "the identity of the caller")
        return Caller(actor, frozenset({"read", "write"}), app.namespace, (app.namespace,))


def _detail(error: PerdureError) -> str:
    if not isinstance(error, BadBody) or len(error.location) < 2:
        return error.message
    return ".".join(map(str, error.location)) + ": " + error.message


def get_user(call: Call) -> User | None:
    """Return the user that custom auth has authenticated; None without custom auth."""
    return cast("User | None", call.request.scope.get(USER))


PROTOCOL = LangGraphProtocol()
