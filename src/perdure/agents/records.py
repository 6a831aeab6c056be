"""Records of registered agents, and of the spans of their attempts."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

DEFAULT_TIMEOUT: Final = 300.0
GRAPH_TIMEOUT: Final = 86_400.0
"""Default timeout of graphs in a `langgraph.json`, as on LangGraph's server."""
MAX_TIMEOUT: Final = 86_400.0
"""Longest timeout of an agent; that of a run may be longer."""
AgentTimeout = Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT)]


class AgentSpec(msgspec.Struct, kw_only=True, frozen=True):
    """The description of an agent that a worker can execute."""

    name: str
    description: str | None = None
    kind: str = "function"
    """`function`, `graph` or `command`."""
    input_schema: dict[str, Any] | None = None
    timeout: AgentTimeout | None = None
    """Timeout of an attempt in seconds, for runs that have none of their own."""
    default_timeout: AgentTimeout = DEFAULT_TIMEOUT
    """Timeout in seconds if neither the run, nor the agent, nor the server sets one."""


class AgentDescription(msgspec.Struct, kw_only=True, frozen=True):
    """Schemas and drawings of an agent, for servers that do not have its code."""

    agent: str
    kind: str = "function"
    """`function`, `graph` or `command`."""
    schemas: dict[str, Any] | None = None
    drawings: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Nodes and edges: without subgraphs, with one level of them, with two, and so on."""
    drawn: bool = True
    """True if the last drawing shows every level."""
    subgraphs: dict[str, dict[str, Any]] | None = None
    """The schemas of all subgraphs, by their path of names."""
    problem: str | None = None
    """Reason why something is missing."""


class PhaseContext(msgspec.Struct, kw_only=True, frozen=True):
    """The phase of a workflow, or the turn of a chat, that an agent executes."""

    workflow_run_id: str | None = None
    label: str | None = None
    """Name in the workflow, with the number of its iteration or fix: `review_fix_1`."""
    iteration: int = 0
    prompt: str | None = None
    previous_output: str | None = None
    """Result of the iteration before."""
    model: str | None = None
    variant: str | None = None
    skills: list[str] = msgspec.field(default_factory=list)
    context: dict[str, Any] = msgspec.field(default_factory=dict)
    """Context of the workflow run."""
    outputs: dict[str, Any] = msgspec.field(default_factory=dict)
    """Results of earlier phases by name."""
    workspace: str | None = None
    """Directory of the workflow run on this machine."""


class SpanEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An event within a span."""

    name: str
    timestamp: float
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)


class RecordedSpan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A span of an attempt that has ended. Times are in seconds; missing ids are filled in."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    start_time: float
    end_time: float
    trace_id: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""
    span_id: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{16})?$")] = ""
    parent_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] | None = None
    number: int = 0
    """Number within the spans of its attempt; 0 lets the worker assign it."""
    kind: Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"] = "INTERNAL"
    status: Literal["UNSET", "OK", "ERROR"] = "UNSET"
    description: str | None = None
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    events: list[SpanEvent] = msgspec.field(default_factory=list)
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further fields, such as links and the instrumentation scope."""
