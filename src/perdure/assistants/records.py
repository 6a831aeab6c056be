"""Records of assistants and agents. Times are epoch seconds."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from perdure.kernel.record import Record

IfExists = Literal["raise", "do_nothing"]


class Assistant(Record, kw_only=True):
    """An agent with a configuration, under a name."""

    assistant_id: str
    agent: str
    """The name under which the agent's code is registered."""
    name: str
    description: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    version: int = 1
    created_at: float
    updated_at: float
    system: bool = False
    """True for the assistant that was created when the agent was registered."""
