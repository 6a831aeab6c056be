"""An operator's own application, which is served beside the graphs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph_sdk import get_client
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

client = get_client()


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    thread = await client.threads.create(metadata={"made": "at startup"})
    yield {"thread_id": thread["thread_id"]}


class Stamp(BaseHTTPMiddleware):
    """Adds a header to the responses of this application."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        response.headers["X-Stamped"] = "yes"
        return response


async def hello(request: Request) -> Response:
    user = request.scope.get("user")
    made = await client.threads.get(request.state.thread_id)
    who = None if user is None else user.identity
    return JSONResponse({"user": who, "made": (made["metadata"] or {})["made"], "path": request.url.path})


async def take(request: Request) -> Response:
    form = (await request.body()).decode()
    return JSONResponse({"got": form}, headers={"X-Frame-Options": "SAMEORIGIN"})


async def fail(request: Request) -> Response:
    raise ValueError("a detail that nobody must see")


app = Starlette(
    routes=[
        Route("/hello", hello),
        Route("/take/{rest:path}", take, methods=["POST"]),
        Route("/fail", fail),
        Route("/threads", hello),
    ],
    middleware=[Middleware(Stamp)],
    lifespan=lifespan,
)
