"""How the Agent-lightning door says no.

Its clients repeat a request after any 5xx and never after a 4xx: what a repetition cannot cure is a 400.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from perdure.kernel.errors import Conflict, InvalidInput, NotFound, OutcomeUnknown, PerdureError, SpansEvicted
from perdure.protocols.http.bodies import BadBody, encode

LONGEST_INPUT = 1000
"""How many bytes of a bad input are shown to who sent it."""

_APPLICATION = (InvalidInput, NotFound, Conflict, SpansEvicted)
_IN_RECORD = re.compile(r"\b[A-Z]\w*\.(\w+)(?=: | is required| must )")
_WANTED = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_KINDS = {"object": "dict", "array": "list", "str": "string", "int": "int", "float": "float", "bool": "bool"}


class CannotRepeat(OutcomeUnknown):
    """The write may or may not have happened; repeating it without an idempotency key could double it."""

    http_status = 409


class LightningDoor:
    """The Agent-lightning protocol's manner of saying no."""

    name = "lightning"

    def refuse(self, error: PerdureError, request_id: str, request: Request) -> Response:
        """The error as clients of `agentlightning` read it, with its code and the request's id."""
        detail = [_schema_error(error)] if isinstance(error, BadBody) else str(error)
        body = {
            "detail": detail,
            "error_type": type(error).__name__,
            "code": error.code,
            "request_id": request_id,
        }
        return Response(encode(body), _status(error), media_type="application/json")


def _status(error: PerdureError) -> int:
    if isinstance(error, BadBody):
        return 422
    return 400 if isinstance(error, _APPLICATION) else error.http_status


def _schema_error(error: BadBody) -> dict[str, Any]:
    """One entry of the list that FastAPI makes of a body or a query that does not fit."""
    location = [*error.location, *_IN_RECORD.findall(error.message)]
    kind = _schema_error_type(error)
    message = "Field required" if kind == "missing" else error.message
    return {"type": kind, "loc": location, "msg": message, "input": _shown(error.given)}


def _shown(given: Any) -> Any:
    """What was given, unless it is so long that nobody would read it."""
    return given if len(encode(given)) <= LONGEST_INPUT else None


def _schema_error_type(error: BadBody) -> str:
    if "missing" in error.message or error.message.endswith("is required"):
        return "missing"
    if "not JSON" in error.message:
        return "json_invalid"
    if "Invalid enum value" in error.message:
        return "literal_error"
    wanted = _WANTED.search(error.message)
    if wanted is None:
        return "value_error"
    kind = _KINDS.get(wanted[1].partition(" ")[0], "value")
    return f"{kind}_parsing" if wanted[2] == "str" and kind in ("int", "float", "bool") else f"{kind}_type"


DOOR = LightningDoor()
