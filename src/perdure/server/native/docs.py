"""The OpenAPI document and a page of all routes, both derived from the route table."""

from __future__ import annotations

import base64
from functools import lru_cache
from hashlib import sha256
from html import escape
from itertools import groupby
from typing import Any

from starlette.responses import Response

from perdure.kernel.version import VERSION
from perdure.server.http.bodies import encode
from perdure.server.http.openapi import document
from perdure.server.http.routes import Call, Route

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin-bottom: 2rem; }
th, td { border-bottom: 1px solid #8884; padding: .35rem .6rem; text-align: left; vertical-align: top; }
code { font: 13px ui-monospace, monospace; }
.method { font-weight: 600; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a { color: #9cf; } }
"""
_HASH = base64.b64encode(sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'; base-uri 'none'"


async def openapi(call: Call) -> Response:
    return Response(_document(call.routes), media_type="application/json")


async def page(call: Call) -> Response:
    headers = {"Content-Security-Policy": POLICY}
    return Response(_page(call.routes), headers=headers, media_type="text/html")


@lru_cache(maxsize=4)
def _document(routes: tuple[Route, ...]) -> bytes:
    return encode(document(routes))


@lru_cache(maxsize=4)
def _page(routes: tuple[Route, ...]) -> str:
    by_group = groupby(sorted(routes, key=_group), key=_group)
    tables = "".join(_table(tag, list(group)) for tag, group in by_group)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>perdure {escape(VERSION)}</title><style>{STYLE}</style></head><body>"
        f"<h1>perdure {escape(VERSION)}</h1>"
        '<p>Every route of this server. <a href="openapi.json">The OpenAPI document</a> has the details, and '
        '<a href="docs/guide/">the guide</a> explains it.</p>'
        f"{tables}</body></html>"
    )


def _group(route: Route) -> str:
    return route.tag or route.protocol.name


def _table(tag: str, routes: list[Route]) -> str:
    heads = "".join(f"<th>{name}</th>" for name in ("", "Path", "What it does", "Scope", "Body", "Answer"))
    rows = "".join(map(_row, routes))
    return f"<h2>{escape(tag)}</h2><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _row(route: Route) -> str:
    cells = (
        f'<code class="method">{escape(route.method)}</code>',
        f"<code>{escape(route.path)}</code>",
        escape(route.summary),
        escape(route.scope or "public"),
        f"<code>{escape(_name(route.body))}</code>",
        f"<code>{escape(_name(route.answer))}</code>",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _name(kind: Any) -> str:
    """Format a type without its modules."""
    if kind is None:
        return ""
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return " ".join(part.rpartition(".")[2] for part in _spaced(text).split()).replace(" ", "")


def _spaced(text: str) -> str:
    for mark in "[],|":
        text = text.replace(mark, f" {mark} ")
    return text
