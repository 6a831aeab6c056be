"""What `langgraph_sdk` reads of assistants, threads, states and runs, field by field. Times are ISO 8601."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from perdure.threads.records import MultitaskStrategy, PruneStrategy, RunStatus, ThreadStatus


class VersionShape(TypedDict):
    """What an assistant was in one of its versions."""

    assistant_id: str
    graph_id: str
    name: str
    description: str | None
    config: dict[str, Any]
    context: dict[str, Any]
    metadata: dict[str, Any]
    version: int
    created_at: str


class AssistantShape(VersionShape):
    """An assistant as it is now."""

    updated_at: str


class GraphShape(TypedDict):
    """The drawing of a graph."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


class SchemasShape(TypedDict):
    """What a graph takes, gives and keeps, as JSON Schema."""

    graph_id: NotRequired[str]
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    state_schema: dict[str, Any] | None
    config_schema: dict[str, Any] | None
    context_schema: dict[str, Any] | None


class InterruptShape(TypedDict):
    """What a run waits for somebody to answer."""

    id: str
    value: Any


class FailureShape(TypedDict):
    """Why a run failed: the class of the exception and what it said."""

    error: str
    message: str


class TtlShape(TypedDict):
    """How long a thread lives, and what is left of it then."""

    strategy: PruneStrategy
    ttl_minutes: float
    expires_at: str | None


class ThreadShape(TypedDict):
    """A thread, with the values and interrupts of its last state."""

    thread_id: str
    status: ThreadStatus
    metadata: dict[str, Any]
    config: dict[str, Any]
    values: Any
    interrupts: dict[str, list[InterruptShape]]
    error: FailureShape | None
    created_at: str
    updated_at: str
    state_updated_at: str
    ttl: NotRequired[TtlShape | None]


class PlaceShape(TypedDict):
    """A place in a thread's history."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    checkpoint_map: NotRequired[dict[str, str] | None]


class StateShape(TypedDict):
    """A state of a thread."""

    values: Any
    next: list[str]
    tasks: list[dict[str, Any]]
    metadata: dict[str, Any] | None
    created_at: str | None
    checkpoint: PlaceShape | None
    parent_checkpoint: PlaceShape | None
    interrupts: list[InterruptShape]
    checkpoint_id: str | None
    parent_checkpoint_id: str | None


class ChangeShape(TypedDict):
    """Where a changed state is kept."""

    checkpoint: PlaceShape
    configurable: dict[str, Any]
    checkpoint_id: str


class RunShape(TypedDict):
    """A run, with what it was asked for in `kwargs`."""

    run_id: str
    thread_id: str
    assistant_id: str
    status: RunStatus
    metadata: dict[str, Any]
    kwargs: dict[str, Any]
    multitask_strategy: MultitaskStrategy
    created_at: str
    updated_at: str
