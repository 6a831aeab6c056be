"""What the LangGraph protocol is asked of threads and their states."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from perdure.assistants.records import IfExists
from perdure.kernel.errors import InvalidInput
from perdure.langgraph.views import CheckpointRef
from perdure.server.langgraph.wire import Body, Limit, Metadata, Offset, SortOrder
from perdure.threads.records import ThreadStatus

MAX_THREADS = 1000
MAX_STEPS = 1000

ThreadField = Literal[
    "thread_id",
    "created_at",
    "updated_at",
    "state_updated_at",
    "metadata",
    "config",
    "context",
    "status",
    "values",
    "interrupts",
    "error",
]
ThreadSort = Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"]
PruneStrategy = Literal["delete", "keep_latest"]
STATE_FIELDS = (
    "values",
    "next",
    "tasks",
    "checkpoint",
    "metadata",
    "created_at",
    "parent_checkpoint",
    "interrupts",
    "checkpoint_id",
    "parent_checkpoint_id",
)


class Lifetime(Body, kw_only=True):
    """How many minutes a thread lives, and what is left of it then."""

    ttl: Annotated[float, Meta(gt=0, le=100 * 366 * 1440)]
    strategy: PruneStrategy | None = None


class Update(Body, kw_only=True):
    """What a node is to have written, or a command that it gave."""

    as_node: str
    values: dict[str, Any] | list[Any] | None = None
    command: dict[str, Any] | None = None


class Superstep(Body, kw_only=True):
    """Updates that belong to the same step."""

    updates: Annotated[list[Update], Meta(max_length=MAX_STEPS)]


class ThreadCreate(Body, kw_only=True):
    """A thread to be made."""

    thread_id: str | None = None
    metadata: Metadata | None = None
    if_exists: IfExists | None = None
    ttl: Lifetime | Annotated[float, Meta(gt=0)] | None = None
    supersteps: Annotated[list[Superstep], Meta(max_length=MAX_STEPS)] | None = None


class ThreadPatch(Body, kw_only=True):
    """What is merged into a thread's metadata, and how long it lives from now on."""

    metadata: Metadata | None = None
    ttl: Lifetime | Annotated[float, Meta(gt=0)] | None = None


class ThreadCount(Body, kw_only=True):
    """Which threads."""

    metadata: Metadata | None = None
    values: dict[str, Any] | None = None
    status: ThreadStatus | None = None


class ThreadSearch(ThreadCount, kw_only=True):
    """Which threads, which of their fields, in which order."""

    ids: Annotated[list[str], Meta(max_length=MAX_THREADS)] | None = None
    limit: Limit | None = None
    offset: Offset | None = None
    sort_by: ThreadSort | None = None
    sort_order: SortOrder | None = None
    select: list[ThreadField] | None = None
    extract: dict[str, str] | None = None


class ThreadPrune(Body, kw_only=True):
    """Which threads, and what is left of each: nothing, or its latest state."""

    thread_ids: Annotated[list[str], Meta(max_length=MAX_THREADS)]
    strategy: PruneStrategy | None = None


class ThreadQuery(msgspec.Struct, kw_only=True):
    """What to show beside a thread's usual fields: `ttl`."""

    include: str = ""


# --- states -----------------------------------------------------------------------------------------------


class CheckpointBody(Body, kw_only=True):
    """A place in a thread's history, as clients name it: alone, or as a part of a config."""

    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_map: dict[str, str] | None = None
    configurable: dict[str, Any] | None = None


class StateQuery(msgspec.Struct, kw_only=True):
    """Whether the states of graphs within the graph are shown, and which fields."""

    subgraphs: bool = False
    select: list[str] | None = None


class StateBody(Body, kw_only=True):
    """Which state of a thread."""

    checkpoint: CheckpointBody
    subgraphs: bool | None = None
    select: list[str] | None = None


class StateUpdate(Body, kw_only=True):
    """What a node is to have written, after a state."""

    values: dict[str, Any] | list[Any] | None = None
    as_node: str | None = None
    checkpoint: CheckpointBody | None = None
    checkpoint_id: str | None = None


class HistoryBody(Body, kw_only=True):
    """Which states of a thread, the newest first."""

    limit: Limit | None = None
    before: str | CheckpointBody | None = None
    metadata: Metadata | None = None
    checkpoint: CheckpointBody | None = None
    select: list[str] | None = None


class HistoryQuery(msgspec.Struct, kw_only=True):
    """Which states of a thread, the newest first."""

    limit: Limit = 10
    before: str | None = None
    select: list[str] | None = None


def place_of(given: str | CheckpointBody | None) -> CheckpointRef | None:
    """The place that a client names: by an id alone, by a checkpoint, or by a config that holds one."""
    if given is None:
        return None
    if isinstance(given, str):
        return CheckpointRef(checkpoint_id=given)
    if given.configurable is not None:
        try:
            given = msgspec.convert(given.configurable, CheckpointBody)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"configurable: {error}") from None
    return CheckpointRef(
        checkpoint_id=given.checkpoint_id,
        checkpoint_ns=given.checkpoint_ns or "",
        checkpoint_map=given.checkpoint_map,
    )


def check_state_fields(names: list[str] | None) -> None:
    """Refuse a field that states do not have; one key of the values is `values.key`."""
    for name in names or ():
        if name not in STATE_FIELDS and not name.startswith("values."):
            known = ", ".join(STATE_FIELDS)
            raise InvalidInput(f"select: a state has no {name[:64]!r}; it has {known} and values.<key>")


def shown_state(state: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
    """A state with the fields that were asked for."""
    if not names:
        return state
    shown = {name: state[name] for name in names if name in STATE_FIELDS}
    keys = [name.partition(".")[2] for name in names if name.startswith("values.")]
    if keys and "values" not in names:
        values = state["values"] if isinstance(state["values"], dict) else {}
        shown["values"] = {key: values[key] for key in keys if key in values}
    return shown
