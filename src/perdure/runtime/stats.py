"""How things stand in one namespace: the queue of runs, the workers, the pools, what is to be delivered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from perdure.outbox.model import DEAD, PENDING, EffectStatus
from perdure.outbox.service import Outbox
from perdure.threads.service import Threads


async def standing(threads: Threads, outbox: Outbox) -> dict[str, Any]:
    """The statistics of a namespace, by the names that they have in logs."""
    health = await threads.storage.health()
    return {
        **asdict(await threads.queue_stats()),
        "workers": asdict(await threads.live_workers()),
        "pools": pools(health),
        "outbox": {status: await _depth(outbox, status) for status in (PENDING, DEAD)},
    }


async def _depth(outbox: Outbox, status: EffectStatus) -> int:
    return (await outbox.list(status=status, limit=0)).total


def pools(health: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """The pools of connections that this process has: to PostgreSQL, and to Redis."""
    found: dict[str, dict[str, int]] = {}
    database = health.get("connections")
    if database is not None:
        found["database"] = {
            "idle_connections": database["idle"],
            "in_use_connections": database["open"] - database["idle"],
            "max_connections": database["limit"],
        }
    if health.get("redis_connections") is not None:
        found["redis"] = dict(health["redis_connections"])
    return found
