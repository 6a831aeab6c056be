"""How the LangGraph door says no: `{"detail": …}`, with the status that `langgraph_sdk` reads."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from perdure.kernel.errors import BadBody, BadQuery, InvalidInput, PerdureError
from perdure.protocols.http.bodies import encode
from perdure.protocols.http.problems import headers_of

UNPROCESSABLE = 422


class BadRequest(InvalidInput):
    """The parts of the request contradict each other."""

    code = "bad_request"
    http_status = 400


class LangGraphDoor:
    """The LangGraph protocol's manner of saying no."""

    name = "langgraph"

    def refuse(self, error: PerdureError, request_id: str, request: Request) -> Response:
        """The error as the SDK reads it: its message in `detail`, and its code for who looks closer."""
        body = {"detail": _detail(error), "code": error.code}
        return Response(encode(body), _status(error), headers_of(error), "application/json")


def _detail(error: PerdureError) -> str:
    if not isinstance(error, BadBody) or len(error.location) < 2:
        return error.message
    return ".".join(map(str, error.location)) + ": " + error.message


def _status(error: PerdureError) -> int:
    """A filter or a sort key that does not exist is a field with a wrong value here."""
    return UNPROCESSABLE if isinstance(error, BadQuery) else error.http_status


DOOR = LangGraphDoor()
