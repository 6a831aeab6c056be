"""The login of the dashboard: a token that the browser keeps, where no script can read it."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from perdure.access.endpoints import PREFIX
from perdure.server.http.bodies import encode
from perdure.server.http.cookies import cookie_name, quoted
from perdure.server.http.gate import credentials_from
from perdure.server.http.routes import Call

LIFETIME: Final = 7 * 24 * 3600
"""How long a browser keeps the token, in seconds; it may expire or be revoked before."""


async def login(call: Call) -> Response:
    """Answer who the caller is, and keep its token in a cookie. The token itself was checked before this."""
    response = Response(encode(await call.services.access.whoami()), media_type="application/json")
    secret = credentials_from(call.request.headers.get).secret
    if secret is not None:
        _set_cookie(call, response, quoted(secret), LIFETIME)
    return response


async def logout(call: Call) -> Response:
    """Let the browser forget the token."""
    response = Response(encode({"ok": True}), media_type="application/json")
    _set_cookie(call, response, "", 0)
    return response


def _set_cookie(call: Call, response: Response, value: str, seconds: int) -> None:
    response.set_cookie(
        cookie_name(call.request.headers.get("host")),
        value,
        max_age=seconds,
        path=call.prefix + PREFIX + "/",
        secure=call.request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
