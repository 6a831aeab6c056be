"""Hubs connected by Redis, as in separate processes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import redis.asyncio
from tests.kernel.support import until

from perdure.kernel.background import Background
from perdure.kernel.signals.redis import RedisSignals


@contextlib.asynccontextmanager
async def redis_hub(url: str, prefix: str, *, up: bool = True, **options: Any) -> AsyncIterator[RedisSignals]:
    """Open a hub; wait until it listens, if the server is `up`."""
    background = Background("redis-hub")
    signals = RedisSignals(background, url, prefix=prefix, **options)
    try:
        signals.publish([])
        if up:
            await until(lambda: signals.status()[0] == "ok")
        yield signals
    finally:
        signals.close()
        background.close()


@contextlib.asynccontextmanager
async def redis_client(url: str) -> AsyncIterator[Any]:
    """Open a Redis client without a hub."""
    client: Any = redis.asyncio.Redis.from_url(url, protocol=2, decode_responses=True)
    try:
        yield client
    finally:
        await client.aclose()
