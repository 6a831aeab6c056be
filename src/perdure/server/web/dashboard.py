"""The dashboard below /ui/: its built files, its pages, and the login of its users.

The files are read once, and requests cannot reach files outside their folder. The pages hold no data and need
no token; the API needs one. The login is a random secret in a cookie that scripts cannot read.
"""

from __future__ import annotations

import base64
import gzip
import mimetypes
import secrets
from functools import lru_cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from perdure.access.logins import LIFETIME
from perdure.access.model import Me
from perdure.kernel.errors import NotFound
from perdure.server.http.bodies import NATIVE, encode
from perdure.server.http.gate import cookie_name, credentials_from, secret_in_cookie
from perdure.server.http.routes import Call, Handler, Route
from perdure.service.endpoints import PREFIX, Ok

# --- files ------------------------------------------------------------------------------------------------


FOLDER: Final = Path(__file__).parents[2] / "web" / "ui"
"""The build's folder: `./dev setup` writes it, and a wheel contains it."""
INDEX: Final = "index.html"
STAMP: Final = ".stamp"
MIN_PACKED: Final = 1024
"""Smaller files are sent uncompressed."""


class BuiltFile(NamedTuple):
    """A file: plain, and gzipped if that is smaller."""

    content: bytes
    packed: bytes | None
    media_type: str


class Build(NamedTuple):
    """A build: the page, and its other files by path."""

    page: str
    files: dict[str, BuiltFile]


def find_build(folder: Path | None = None) -> Build | None:
    """Return the build, or None if it is missing. A new build needs no restart."""
    place = folder or FOLDER
    try:
        version = (place / INDEX).stat().st_mtime_ns
    except OSError:
        return None
    return _read(place, version)


@lru_cache(maxsize=2)
def _read(folder: Path, version: int) -> Build:
    files = {
        path.relative_to(folder).as_posix(): _read_built_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (INDEX, STAMP)
    }
    return Build((folder / INDEX).read_text("utf-8"), files)


def _read_built_file(path: Path) -> BuiltFile:
    content = path.read_bytes()
    packed = gzip.compress(content, 9, mtime=0) if len(content) >= MIN_PACKED else None
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if media_type.startswith("text/") or media_type.endswith("/javascript"):
        media_type = media_type.replace("application/javascript", "text/javascript") + "; charset=utf-8"
    return BuiltFile(content, packed if packed and len(packed) < len(content) else None, media_type)


# --- login ------------------------------------------------------------------------------------------------


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


# --- pages ------------------------------------------------------------------------------------------------


ASSETS: Final = "assets/"
"""Path of files whose names contain the hash of their content."""
FOREVER: Final = "public, max-age=31536000, immutable"
A_MOMENT: Final = "no-cache"
NONCE: Final = "perdure-nonce"
BASE: Final = "/perdure-base/"
"""Placeholders in the built page for the nonce and the base path."""
NOT_BUILT_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.6 system-ui, sans-serif; max-width: 40rem; margin: 15vh auto; padding: 0 1rem; }
code { font: 14px ui-monospace, monospace; background: #8882; padding: .1rem .3rem; border-radius: .25rem; }
"""
NOT_BUILT: Final = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>perdure</title>
<style>{style}</style></head><body><main><h1>The dashboard is not built</h1>
<p>The server works, but this source tree has no built pages.</p>
<p>Install Node.js 20.19 or newer and run <code>./dev setup</code>, then load this page again.
A wheel contains the pages.</p>
<p><a href="{docs}">Another page</a> lists every route of the API.</p></main></body></html>"""


async def lead_to_dashboard(call: Call) -> Response:
    """Redirect to the dashboard."""
    return Response(status_code=307, headers={"Location": get_home(call)})


async def show(call: Call) -> Response:
    """Return a file of the dashboard, or its page for any other path."""
    path = call.path["path"]
    build = find_build()
    if build is None:
        return _not_built(call)
    file = build.files.get(path)
    if file is not None:
        return _file(call.request, path, file)
    if path.startswith(ASSETS):
        raise NotFound("the dashboard has no such file; another version of it may be installed now")
    nonce = secrets.token_urlsafe(16)
    text = build.page.replace(NONCE, nonce).replace(BASE, escape(get_home(call)))
    return Response(text, headers={"Content-Security-Policy": build_policy(nonce)}, media_type="text/html")


def get_home(call: Call) -> str:
    """Return the dashboard's path, as browsers request it."""
    return call.prefix + "/ui/"


def build_policy(nonce: str) -> str:
    """Build the Content-Security-Policy: scripts and styles of this server, and styles with this nonce."""
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; manifest-src 'self'; form-action 'none'; base-uri 'self'; "
        "frame-ancestors 'none'"
    )


def _file(request: Request, path: str, file: BuiltFile) -> Response:
    headers = {"Cache-Control": FOREVER if path.startswith(ASSETS) else A_MOMENT, "Vary": "Accept-Encoding"}
    content = file.content
    if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        content = file.packed
        headers["Content-Encoding"] = "gzip"
    return Response(content, headers=headers, media_type=file.media_type)


def _not_built(call: Call) -> Response:
    digest = base64.b64encode(sha256(NOT_BUILT_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'; base-uri 'none'"
    docs = escape(call.prefix + "/docs")
    text = NOT_BUILT.format(style=NOT_BUILT_STYLE, docs=docs)
    return Response(text, 503, headers={"Content-Security-Policy": policy}, media_type="text/html")


# --- routes -----------------------------------------------------------------------------------------------


TAG = "dashboard"


def _leads(path: str) -> Route:
    return Route(
        method="GET",
        path=path,
        handler=lead_to_dashboard,
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
        handler=show,
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
        login,
        Me,
        "Start a login of the dashboard: a cookie that only this API is sent",
    ),
    _session("/api/v1/logout", logout, Ok, "End the login of the dashboard"),
)
