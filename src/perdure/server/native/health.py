"""Whether the server lives, whether it can work, and what it is, at the paths that probes know."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from perdure.client import native_wire as wire
from perdure.kernel.errors import PerdureError
from perdure.kernel.version import VERSION
from perdure.rollouts.overview import Overview
from perdure.rollouts.store import DatabaseLightningStore
from perdure.server.http.bodies import encode
from perdure.server.http.routes import Call

READY_SECONDS = 5.0
PROTOCOLS = ["native", "agent-lightning", "langgraph", "otlp"]
FLAGS = {"assistants": True, "crons": True, "langsmith": False}
HOST: dict[str, str | None] = {"kind": "self-hosted", "project_id": None, "revision_id": None}


async def live(call: Call) -> wire.Health:
    """Whoever can answer is alive."""
    return wire.Health()


async def ok(call: Call) -> wire.Ok:
    """Whoever can answer is alive; with `check_db`, only while the database answers too."""
    if call.query.check_db and (await _examine(call)).status != "ok":
        raise PerdureError("the database does not answer")
    return wire.Ok()


async def info(call: Call) -> wire.Info:
    return wire.Info(
        name="perdure",
        version=VERSION,
        protocols=PROTOCOLS,
        langgraph_py_version=_langgraph(),
        flags=FLAGS,
        host=HOST,
    )


@cache
def _langgraph() -> str | None:
    try:
        return version("langgraph")
    except PackageNotFoundError:
        return None


async def ready(call: Call) -> Response:
    """What anybody may know; the reason stands in the log, and in `/api/v1/health`."""
    found = await _examine(call)
    shown = wire.Ready(
        status=found.status,
        database=found.database,
        indexes_being_built=found.indexes_being_built,
        redis=found.redis,
    )
    return _answer(shown)


async def detail(call: Call) -> Response:
    return _answer(await _examine(call))


def _answer(found: wire.Ready) -> Response:
    status = 200 if found.status == "ok" else 503
    return Response(encode(found), status, media_type="application/json")


async def _examine(call: Call) -> wire.HealthDetail:
    store = call.app.store
    if not isinstance(store, DatabaseLightningStore):
        return _detail({"status": "ok"}, None)
    reason = await _reach(store)
    health = dict(await store.health())
    if reason is not None:
        health = {**health, "status": "degraded", "reason": reason}
    return _detail(health, store.storage.engine)


async def _reach(store: DatabaseLightningStore) -> str | None:
    """Why the database does not answer, if it does not."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            await Overview(store.storage).ping()
    except PerdureError as error:
        return error.message
    except TimeoutError:
        return f"the database did not answer within {READY_SECONDS:.0f} s"
    return None


def _detail(health: dict[str, Any], engine: str | None) -> wire.HealthDetail:
    return wire.HealthDetail(
        status=health["status"],
        database=health["status"],
        indexes_being_built=health.get("indexes_being_built", []),
        reason=health.get("reason"),
        engine=engine,
        connections=health.get("connections"),
        redis=health.get("redis", UNSET),
        redis_reason=health.get("redis_reason", UNSET),
        redis_connections=health.get("redis_connections", UNSET),
    )
