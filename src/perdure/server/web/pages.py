"""Serves the dashboard below /ui/. Its files hold no data and need no token; the API behind them does."""

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
"""Files below it have the hash of their content in their names."""
FOREVER: Final = "public, max-age=31536000, immutable"
A_MOMENT: Final = "no-cache"
NONCE: Final = "perdure-nonce"
BASE: Final = "/perdure-base/"
"""What stands in the built page in the place of the nonce and of the path."""
NOT_BUILT_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.6 system-ui, sans-serif; max-width: 40rem; margin: 15vh auto; padding: 0 1rem; }
code { font: 14px ui-monospace, monospace; background: #8882; padding: .1rem .3rem; border-radius: .25rem; }
"""
NOT_BUILT: Final = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>perdure</title>
<style>{style}</style></head><body><main><h1>The dashboard is not built</h1>
<p>The server works. Its pages are missing, since this is a source tree in which they were not built.</p>
<p>Install Node.js 20.19 or newer and run <code>./dev setup</code>, then load this page again.
A wheel has the pages in it.</p>
<p>Every route of the API is on <a href="{docs}">a page of its own</a>.</p></main></body></html>"""


async def lead_to_dashboard(call: Call) -> Response:
    """Redirect to the dashboard."""
    return Response(status_code=307, headers={"Location": get_home(call)})


async def show(call: Call) -> Response:
    """A file of the dashboard, or its page, which shows what the path names."""
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
    """The path of the dashboard, as browsers call it."""
    return call.prefix + "/ui/"


def build_policy(nonce: str) -> str:
    """Scripts come from files of this server alone; styles too, or they have the nonce of this response."""
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
