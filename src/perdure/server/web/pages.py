"""The dashboard below /ui/. Its files hold no data and need no token; the API needs one."""

from __future__ import annotations

import base64
import secrets
from hashlib import sha256
from html import escape
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from perdure.kernel.errors import NotFound
from perdure.server.http.routes import Call
from perdure.server.web.files import BuiltFile, find_build

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
