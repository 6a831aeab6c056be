"""What a worker registers of its agents."""

from __future__ import annotations

from typing import Any

import msgspec


class AgentSpec(msgspec.Struct, kw_only=True, frozen=True):
    """What a worker tells of an agent that it can run."""

    name: str
    description: str | None = None
    kind: str = "function"
    """function, graph or command."""
    input_schema: dict[str, Any] | None = None
