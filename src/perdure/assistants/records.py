"""What callers see of assistants and agents. Times are epoch seconds."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import field

from perdure.graphs.records import GraphChanges
from perdure.kernel.record import Record

IfExists = Literal["raise", "do_nothing"]


class AgentSpec(msgspec.Struct, kw_only=True, frozen=True):
    """What a worker tells of an agent that it can run."""

    name: str
    description: str | None = None
    kind: str = "function"
    """function, graph or command."""
    input_schema: dict[str, Any] | None = None


class Assistant(Record, kw_only=True):
    """An agent by name, with a configuration of its own."""

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
    """Whether it is the agent's own, made when the agent was registered."""


class GraphState(msgspec.Struct, kw_only=True, frozen=True):
    """What a thread shows of a checkpoint of its graph. Its values are in the checkpoint's pieces."""

    checkpoint_id: str
    parent_id: str | None = None
    next: list[str] = field(default_factory=list)
    interrupts: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    body: str | None = None
    """Its values as JSON, where they are known: those of the last state of a run."""
    whole: bool = False
    """Whether the pieces alone do not tell the values, so that the body is kept, however long it is."""
    again: bool = False
    """Whether the thread has it already, and it is to be brought up to date."""


class GraphSteps(msgspec.Struct, kw_only=True, frozen=True):
    """What a graph has done: its checkpoints and writes, and which of them are states of the thread."""

    changes: GraphChanges = field(default_factory=GraphChanges)
    states: list[GraphState] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.states or self.changes.puts or self.changes.writes)
