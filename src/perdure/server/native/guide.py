"""The guide: documentation pages that `./dev docs` has built, served from the installation.

Only files in the build's manifest are served. The pages contain nothing of this server, so they need no
token.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
from starlette.responses import RedirectResponse, Response

from perdure.server.http.routes import Call
from perdure.server.native.docs import POLICY as PAGE_POLICY
from perdure.server.native.docs import STYLE

SITE: Final = Path(__file__).resolve().parents[2] / "web" / "guide"
MANIFEST: Final = "manifest.json"
ASSETS: Final = "assets/"
"""Path of files whose names contain a digest of their content."""
FOREVER: Final = "public, max-age=31536000, immutable"
ASK_AGAIN: Final = "no-cache"
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
NOT_BUILT: Final = (
    "<h1>The guide is not part of this installation</h1>"
    "<p>Build it in a checkout of perdure with <code>./dev docs</code>, and load this page again. A wheel "
    "that is built after that contains it.</p>"
    "<p>The pages are also in its folder <code>docs/</code>. Every route of this server is on the page "
    "<code>/docs</code>.</p>"
)
NO_SUCH_PAGE: Final = (
    "<h1>No such page</h1><p>The guide has no page of this name. Start at its table of contents, "
    "<code>/docs/guide/</code>.</p>"
)


class Manifest(msgspec.Struct, frozen=True):
    """The result of a build: a digest of each file, and the hashes of inline scripts."""

    files: dict[str, str]
    scripts: list[str]

    @property
    def policy(self) -> str:
        """The Content-Security-Policy: files of this server, and the inline scripts of the build."""
        scripts = "".join(f" 'sha256-{digest}'" for digest in self.scripts)
        return (
            f"default-src 'none'; script-src 'self'{scripts}; style-src 'self'; img-src 'self' data:; "
            "font-src 'self'; connect-src 'self'; worker-src 'self'; form-action 'none'; "
            "frame-ancestors 'none'; base-uri 'none'"
        )


async def enter(call: Call) -> Response:
    """Redirect to the guide's start. The target is relative, because the server may be below a prefix."""
    return RedirectResponse("guide/", 307)


async def llms(call: Call) -> Response:
    """Redirect to a file for coding agents, which look for it at the root of a server."""
    return RedirectResponse("docs/guide" + call.request.url.path[call.request.url.path.rindex("/") :], 307)


async def show(call: Call) -> Response:
    """Return a file of the guide, or explain how to build it."""
    manifest = await asyncio.to_thread(_manifest, SITE)
    if manifest is None:
        return _page(NOT_BUILT)
    name = call.path["path"] or "index.html"
    digest = manifest.files.get(name)
    if digest is None:
        return _page(NO_SUCH_PAGE)
    headers = {
        "Cache-Control": FOREVER if name.startswith(ASSETS) else ASK_AGAIN,
        "ETag": f'"{digest}"',
        "Content-Security-Policy": manifest.policy,
    }
    if headers["ETag"] in call.request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    content = await asyncio.to_thread((SITE / name).read_bytes)
    media_type = TYPES.get(Path(name).suffix, "application/octet-stream")
    return Response(content, headers={**headers, "Content-Type": media_type})


def _manifest(site: Path) -> Manifest | None:
    """Return the manifest, read again after each build."""
    path = site / MANIFEST
    try:
        return _read(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=1)
def _read(path: Path, changed: int) -> Manifest:
    return msgspec.json.decode(path.read_bytes(), type=Manifest)


def _page(content: str) -> Response:
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>perdure</title>'
        f"<style>{STYLE}</style></head><body>{content}</body></html>"
    )
    headers = {"Content-Security-Policy": PAGE_POLICY}
    return Response(text, 404, headers=headers, media_type="text/html")
