"""What the native door takes and gives of assistants, threads, runs and the outbox, beyond their records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from perdure.assistants.records import IfExists
from perdure.client.native_wire import MAX_BATCH, Body, Metadata, PageQuery
from perdure.rollouts.contract import SortOrder
from perdure.threads.records import (
    CancelAction,
    Lifetime,
    PruneStrategy,
    RunRequest,
    RunStatus,
    ThreadStatus,
)
from perdure.threads.why import Why as Why

MAX_ID = 255
MAX_WAIT_SECONDS = 3600.0

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
Terms = list[str]
"""Metadata to search for: each `key:text`, or a JSON object."""


# --- assistants -------------------------------------------------------------------------------------------


class AssistantQuery(PageQuery, kw_only=True):
    """Which assistants; `metadata` is `key:text`, as often as needed, or a JSON object."""

    agent: str | None = None
    name: str | None = None
    metadata: Terms | None = None
    sort_by: Literal["created_at", "updated_at", "assistant_id", "agent", "name"] = "created_at"
    sort_order: SortOrder = "desc"


class NewAssistant(Body, kw_only=True):
    """An assistant to be made of an agent."""

    agent: Id
    assistant_id: Id | None = None
    name: str | None = None
    description: str | None = None
    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    metadata: Metadata | None = None
    if_exists: IfExists = "raise"


class AssistantPatch(Body, kw_only=True):
    """What the next version has; metadata is merged, and a field that is left out keeps its value."""

    agent: Id | None = None
    name: str | None = None
    description: str | None = None
    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    metadata: Metadata | None = None


class Latest(Body, kw_only=True):
    """Which version counts from now on."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)]


# --- threads ----------------------------------------------------------------------------------------------


class ThreadQuery(PageQuery, kw_only=True):
    """Which threads; `metadata` is `key:text`, as often as needed, or a JSON object."""

    status: ThreadStatus | None = None
    metadata: Terms | None = None
    thread_id: list[str] | None = None
    values: bool = True
    sort_by: Literal["created_at", "updated_at", "thread_id", "status"] = "created_at"
    sort_order: SortOrder = "desc"


class NewThread(Body, kw_only=True):
    """A thread to be made; where its id is taken, `do_nothing` gives the one that is there."""

    thread_id: Id | None = None
    metadata: Metadata | None = None
    config: dict[str, Any] | None = None
    values: Any = None
    if_exists: IfExists = "raise"
    lifetime: Lifetime | None = None


class ThreadPatch(Body, kw_only=True):
    """Metadata is merged into what is there; config and lifetime take its place."""

    metadata: Metadata | None = None
    config: dict[str, Any] | None = None
    lifetime: Lifetime | None = None


class Prune(Body, kw_only=True):
    """Which threads, and what is left of each: nothing, or its latest state."""

    thread_ids: Annotated[list[str], Meta(max_length=MAX_BATCH)]
    strategy: PruneStrategy = "delete"


class Pruned(msgspec.Struct, kw_only=True):
    """How many there were."""

    count: int


class StateQuery(msgspec.Struct, kw_only=True):
    """Which state; the latest if none is named."""

    checkpoint_id: str | None = None


class NewState(Body, kw_only=True):
    """A state that is kept after another one, the latest if none is named."""

    values: Any
    checkpoint_id: str | None = None
    metadata: Metadata | None = None
    next: list[str] = msgspec.field(default_factory=list)


class HistoryQuery(msgspec.Struct, kw_only=True):
    """Which states: those before a checkpoint, with some metadata."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 10
    before: str | None = None
    metadata: Terms | None = None


# --- runs -------------------------------------------------------------------------------------------------


class RunBatch(Body, kw_only=True):
    """Runs that are made all together or not at all."""

    runs: Annotated[list[RunRequest], Meta(min_length=1, max_length=MAX_BATCH)]


class RunQuery(PageQuery, kw_only=True):
    """Which runs, the newest first."""

    thread_id: str | None = None
    status: RunStatus | None = None


class ThreadRunQuery(PageQuery, kw_only=True):
    """Which runs of a thread, the newest first."""

    status: RunStatus | None = None


class RunPlace(msgspec.Struct, kw_only=True):
    """The thread that the run must be of, if any."""

    thread_id: str | None = None


class CancelQuery(msgspec.Struct, kw_only=True):
    """How to end a run, and whether to wait until whoever executes it has stopped."""

    action: CancelAction = "interrupt"
    wait: bool = False


class CancelMany(Body, kw_only=True):
    """Which runs to end: some by their ids, or those with a status, of a thread or of all."""

    thread_id: str | None = None
    run_ids: Annotated[list[str], Meta(max_length=MAX_BATCH)] | None = None
    status: Literal["pending", "running", "all"] | None = None
    action: CancelAction = "interrupt"


class WaitQuery(msgspec.Struct, kw_only=True):
    """How many seconds to wait; without a limit, until the run has ended."""

    timeout: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)] | None = None


Since = Literal["start", "now"]


class StreamQuery(msgspec.Struct, kw_only=True):
    """Which events, from where on; a Last-Event-ID counts more than `since`."""

    stream_mode: list[str] | None = None
    since: Since | None = None
    cancel_on_disconnect: bool = False


class ThreadStreamQuery(msgspec.Struct, kw_only=True):
    """Which events, from where on; a Last-Event-ID counts more than `since`."""

    stream_mode: list[str] | None = None
    since: Since | None = None


# --- the outbox, and what is held up where ----------------------------------------------------------------
