"""A server on a free port, and requests to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
from tests.server.local_server import serving_locally

from perdure import LightningStore
from perdure.kernel.config import Settings
from perdure.runtime.app import StoreApp, build_app
from perdure.runtime.components import Component
from perdure.server.http.routes import Route
from perdure.server.http.server import make_application
from perdure.server.table import build_application


class Answer(NamedTuple):
    """A response."""

    status: int
    body: Any
    headers: dict[str, str]


class Visitor:
    """Sends requests to one server, as one caller."""

    def __init__(self, url: str, session: aiohttp.ClientSession, app: StoreApp) -> None:
        self.url = url
        self.session = session
        self.app = app
        self.headers: dict[str, str] = {}

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        headers = self.headers | options.pop("headers", {})
        async with self.session.request(method, self.url + path, headers=headers, **options) as response:
            is_json = "json" in response.headers.get("Content-Type", "")
            body = await (response.json(content_type=None) if is_json else response.read())
            return Answer(response.status, body, dict(response.headers))

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, **options: Any) -> Answer:
        return await self.ask("POST", path, **options)


@asynccontextmanager
async def serving(
    store: LightningStore,
    routes: tuple[Route, ...] | None = None,
    components: tuple[Component, ...] = (),
    **settings: Any,
) -> AsyncIterator[Visitor]:
    """Serve a store, with every protocol or with the given routes."""
    app = build_app(store, Settings(**settings))
    application = (
        build_application(app, components) if routes is None else make_application(app, routes, components)
    )
    async with serving_locally(application) as url, aiohttp.ClientSession() as session:
        yield Visitor(url, session, app)
