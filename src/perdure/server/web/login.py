"""The login of the dashboard: a random secret in a cookie that scripts cannot read."""

from __future__ import annotations

from starlette.responses import Response

from perdure.access.logins import LIFETIME
from perdure.server.http.bodies import encode
from perdure.server.http.cookies import cookie_name, secret_in_cookie
from perdure.server.http.gate import credentials_from
from perdure.server.http.routes import Call
from perdure.service.endpoints import PREFIX


async def login(call: Call) -> Response:
    """Return the caller. If the caller sent a secret, start a login.

    The secret has been checked before this. The cookie holds a new secret, never the caller's.
    """
    access = call.services.access
    response = Response(encode(await access.whoami()), media_type="application/json")
    secret = credentials_from(call.request.headers.get).secret
    if secret is not None:
        await _end_login(call)
        value = await access.log_in(secret, call.app.settings.login_idle_timeout)
        _set_cookie(call, response, value, LIFETIME)
    return response


async def logout(call: Call) -> Response:
    """End the login, and delete its cookie."""
    await _end_login(call)
    response = Response(encode({"ok": True}), media_type="application/json")
    _set_cookie(call, response, "", 0)
    return response


async def _end_login(call: Call) -> None:
    headers = call.request.headers
    secret = secret_in_cookie(headers.get("cookie"), headers.get("host"))
    if secret is not None:
        await call.services.access.log_out(secret)


def _set_cookie(call: Call, response: Response, value: str, seconds: int) -> None:
    public_url = call.app.settings.public_url or ""
    response.set_cookie(
        cookie_name(call.request.headers.get("host")),
        value,
        max_age=seconds,
        path=call.prefix + PREFIX + "/",
        secure=call.request.url.scheme == "https" or public_url.startswith("https:"),
        httponly=True,
        samesite="strict",
    )
