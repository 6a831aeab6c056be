"""A server that keeps webhooks and returns prepared answers, and effects for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

from perdure.kernel.codec import encode_json
from perdure.kernel.config import Settings
from perdure.outbox.model import Effect
from perdure.outbox.webhooks.sender import WebhookSender

SECRET = "a plain secret of some length"
PATIENCE = 20.0

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Got(NamedTuple):
    """A received request."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Keeps requests. `answers` are returned in turn, then always 200."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.answers: list[int | web.StreamResponse | Answer] = []
        self.port = 0
        self._news = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.got.append(Got(request.path_qs, dict(request.headers), await request.read()))
        self._news.set()
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, int):
            return web.Response(status=answer)
        return answer if isinstance(answer, web.StreamResponse) else await answer(request)

    async def has(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.got) < count:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def receiving(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        await runner.cleanup()


def body_for(url: str, **payload: Any) -> str:
    return encode_json({"url": url, "payload": payload or {"run_id": "r-1", "status": "success"}})


def effect_for(url: str, **payload: Any) -> Effect:
    """Build the effect of a webhook as its consumer gets it."""
    return raw_effect(body_for(url, **payload))


def raw_effect(body: str | None) -> Effect:
    return Effect(
        id="effect-1",
        consumer="webhook",
        subject="r-1",
        status="pending",
        attempts=1,
        created_at=0.0,
        body=body,
    )


def private_sender(**options: Any) -> WebhookSender:
    """Build a sender that may connect to this machine."""
    settings = {name: options.pop(name) for name in list(options) if name.startswith("webhook_")}
    return WebhookSender(Settings(**{"webhook_allow_private": True, **settings}), **options)
