"""The Agent-lightning protocol: health, statistics and capabilities of the store."""

from __future__ import annotations

from typing import Any

from perdure.client import lightning_wire as wire
from perdure.server.http.routes import Call
from perdure.server.lightning.protocol import LightningResource

store = LightningResource()


@store.get("/health", None, "Whether the server answers", answer=wire.LightningHealth)
async def health(call: Call) -> wire.LightningHealth:
    return wire.LightningHealth()


@store.get("/statistics", "read", "How much the store holds", answer=dict[str, Any])
async def statistics(call: Call) -> Any:
    return await call.store.statistics()


@store.get("/capabilities", "read", "What the store can do", answer=dict[str, bool])
async def capabilities(call: Call) -> Any:
    return call.store.capabilities
