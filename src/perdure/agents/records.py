"""The description of an agent that a worker registers."""

from __future__ import annotations

from typing import Any

import msgspec


class AgentSpec(msgspec.Struct, kw_only=True, frozen=True):
    """The description of an agent that a worker can execute."""

    name: str
    description: str | None = None
    kind: str = "function"
    """function, graph or command."""
    input_schema: dict[str, Any] | None = None
