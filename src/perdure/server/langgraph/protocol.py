"""How the LangGraph protocol says no: `{"detail": …}`, with the status that `langgraph_sdk` reads."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from perdure.access.model import Caller
from perdure.kernel.codec import check_text
from perdure.kernel.errors import BadBody, BadQuery, PerdureError
from perdure.runtime.app import App
from perdure.server.http.bodies import encode
from perdure.server.http.problems import headers_of

UNPROCESSABLE = 422
USER = "langgraph_user"
"""Where in a request's scope its user stands, if the operator's own auth let it in."""


class LangGraphDoor:
    """The LangGraph protocol's manner of saying no."""

    name = "langgraph"

    def refuse(self, error: PerdureError, request_id: str, request: Request) -> Response:
        """The error as the SDK reads it: its message in `detail`, and its code for who looks closer."""
        body = {"detail": _detail(error), "code": error.code}
        return Response(encode(body), _status(error), headers_of(error), "application/json")

    async def admit(self, request: Request, app: App) -> Caller | None:
        """Who calls, where the operator's own auth decides; None where it does not."""
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


def _status(error: PerdureError) -> int:
    """A filter or a sort key that does not exist is a field with a wrong value here."""
    return UNPROCESSABLE if isinstance(error, BadQuery) else error.http_status


DOOR = LangGraphDoor()
