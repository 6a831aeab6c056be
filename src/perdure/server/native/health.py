"""Liveness, readiness and description of the server, at the paths that probes use."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from perdure.kernel.errors import PerdureError
from perdure.kernel.version import VERSION
from perdure.server.http.bodies import encode
from perdure.server.http.routes import Call
from perdure.server.native import wire

PROTOCOLS = ["native", "agent-lightning", "langgraph", "otlp"]
FLAGS = {"assistants": True, "crons": True, "langsmith": False}
HOST: dict[str, str | None] = {"kind": "self-hosted", "project_id": None, "revision_id": None}


async def live(call: Call) -> wire.Health:
    """Answer while the process is alive."""
    return wire.Health()


async def ok(call: Call) -> wire.Ok:
    """Answer while the process is alive; with `check_db`, the database must answer too."""
    checked = call.query.check_db and "meta" not in call.app.http.disabled
    if checked and (await _examine(call)).database != "ok":
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
        grpc_ports=list(call.app.grpc_ports),
    )


@cache
def _langgraph() -> str | None:
    try:
        return version("langgraph")
    except PackageNotFoundError:
        return None


async def ready(call: Call) -> Response:
    """Return the public readiness. The log and `/api/v1/health` have the reason."""
    health = await _examine(call)
    shown = wire.ReadyAnswer(
        status=health.status,
        database=health.database,
        indexes_being_built=health.indexes_being_built,
        redis=health.redis,
    )
    return _answer(shown)


async def detail(call: Call) -> Response:
    return _answer(await _examine(call))


def _answer(health: wire.ReadyAnswer) -> Response:
    status = 200 if health.status == "ok" else 503
    return Response(encode(health), status, media_type="application/json")


async def _examine(call: Call) -> wire.HealthDetail:
    app = call.app
    health: dict[str, Any] = await app.health()
    return wire.HealthDetail(
        status="stopping" if app.stopping else health["status"],
        database=health["status"],
        indexes_being_built=health.get("indexes_being_built", []),
        reason=health.get("reason"),
        engine=health.get("engine"),
        connections=health.get("connections"),
        process_id=os.getpid(),
        started_at=app.started_at,
        redis=health.get("redis", UNSET),
        redis_reason=health.get("redis_reason", UNSET),
        redis_connections=health.get("redis_connections", UNSET),
    )
