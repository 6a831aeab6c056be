"""What callers see of threads, runs and checkpoints, and what they may ask for. Times are epoch seconds."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import field

from perdure.kernel.record import Record

RunStatus = Literal["pending", "running", "success", "error", "timeout", "interrupted", "rollback"]
ThreadStatus = Literal["idle", "busy", "interrupted", "error"]
MultitaskStrategy = Literal["reject", "enqueue", "interrupt", "rollback"]
CancelAction = Literal["interrupt", "rollback"]
IfNotExists = Literal["create", "reject"]
OnDisconnect = Literal["cancel", "continue"]
OnCompletion = Literal["delete", "keep"]
PruneStrategy = Literal["delete", "keep_latest"]
RunKind = Literal["run", "phase"]

RUN_STATUSES: Final = get_args(RunStatus)
THREAD_STATUSES: Final = get_args(ThreadStatus)
MULTITASK_STRATEGIES: Final = get_args(MultitaskStrategy)
CANCEL_ACTIONS: Final = get_args(CancelAction)
PRUNE_STRATEGIES: Final = get_args(PruneStrategy)
KINDS_OF_RUNS: Final = get_args(RunKind)

MAX_DELAY_SECONDS = 10 * 366 * 86_400
Delay = Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_SECONDS)]
Limit = Annotated[float, msgspec.Meta(gt=0, le=30 * 86_400)]


class Failure(Record, kw_only=True):
    """Why a run failed: the class of the exception and what it said."""

    error: str
    message: str


class Interrupt(Record, kw_only=True):
    """What a run waits for a person to answer."""

    id: str
    value: Any = None
    task_id: str | msgspec.UnsetType = msgspec.UNSET
    """The task of a graph that asks."""


class RunCommand(Record, kw_only=True):
    """How a run goes on from where its thread stopped: `resume` answers an interrupt."""

    resume: Any = msgspec.UNSET
    update: Any = msgspec.UNSET
    goto: Any = msgspec.UNSET


class RunRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A run that somebody asks for."""

    assistant_id: str
    """The id of an assistant, or the name of an agent."""
    thread_id: str | None = None
    """The thread to run on; without one the run gets a thread of its own."""
    input: Any = None
    command: RunCommand | None = None
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    inherit_metadata: bool = False
    """Whether its metadata is on top of its assistant's and its thread's, which then names the assistant."""
    checkpoint_id: str | None = None
    """The checkpoint to go on from, instead of the thread's latest."""
    multitask_strategy: MultitaskStrategy = "reject"
    if_not_exists: IfNotExists = "reject"
    after_seconds: Delay | None = None
    on_disconnect: OnDisconnect = "continue"
    on_completion: OnCompletion | None = None
    """What happens to a thread of its own: `delete` removes it with the run when the run ends, unless the run
    fails; `keep` keeps it; by default it is kept for `retention_temporary`."""
    webhook: str | None = None
    stream_mode: list[str] = field(default_factory=lambda: ["values"])
    options: dict[str, Any] = field(default_factory=dict)
    """What only the kind of agent understands, such as stream_subgraphs or interrupt_before of a graph."""
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    timeout_seconds: Limit | None = None
    """How long an attempt may take; by default what its agent or the server says."""
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    """How often it is tried; by default BG_JOB_MAX_RETRIES."""
    traceparent: str | None = None
    """The W3C trace that asked for it, so that both are one trace."""


class RunKwargs(Record, kw_only=True):
    """What an agent is run with, as it was asked for."""

    input: Any = None
    command: RunCommand | None = None
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] | None = None
    checkpoint_id: str | None = None
    stream_mode: list[str] = field(default_factory=lambda: ["values"])
    options: dict[str, Any] = field(default_factory=dict)
    traceparent: str | None = None


class Run(Record, kw_only=True):
    """A run: one execution of an assistant on a thread, through all its attempts."""

    run_id: str
    thread_id: str
    assistant_id: str
    agent: str
    """The name of the agent that the assistant is of."""
    status: RunStatus
    metadata: dict[str, Any]
    kwargs: RunKwargs
    multitask_strategy: MultitaskStrategy
    created_at: float
    """When it was asked for, plus its delay."""
    updated_at: float
    ended_at: float | None = None
    attempt: int = 0
    """How many attempts have begun."""
    error: Failure | None = None
    temporary: bool = False
    """Whether its thread ends with it."""
    on_disconnect: OnDisconnect = "continue"
    webhook: str | None = None
    """Where its end is told, with credentials masked."""
    session_id: str | None = None
    """The session that has what its agent said, once it has said something."""
    kind: RunKind = "run"
    """`phase` if a workflow or a chat asked for it."""
    parent: str | None = None
    """The workflow run that a phase is a part of."""


class Thread(Record, kw_only=True):
    """A thread: a place where one run at a time works on one state."""

    thread_id: str
    status: ThreadStatus
    metadata: dict[str, Any]
    config: dict[str, Any]
    values: Any = None
    interrupts: list[Interrupt] = field(default_factory=list)
    error: Failure | None = None
    created_at: float
    updated_at: float
    state_updated_at: float
    checkpoint_id: str | None = None


class Lifetime(Record, kw_only=True):
    """How long a thread lives, and what is left of it then: nothing, or its latest state."""

    minutes: float
    strategy: PruneStrategy = "delete"
    expires_at: float | None = None


class NewCheckpoint(msgspec.Struct, kw_only=True, frozen=True):
    """A state to be kept. `state` is the agent's own form of it, which nobody else reads."""

    values: Any = None
    next: list[str] = field(default_factory=list)
    """What would run next; a state with something next is not finished."""
    interrupts: list[Interrupt] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    state: bytes | None = None
    checkpoint_id: str | None = None
    parent_id: str | None = None


class Checkpoint(Record, kw_only=True):
    """A state of a thread, as it was kept."""

    thread_id: str
    checkpoint_id: str
    parent_id: str | None = None
    run_id: str | None = None
    attempt: int | None = None
    step: int
    """Counts from 0 within the thread."""
    values: Any = None
    next: list[str] = field(default_factory=list)
    interrupts: list[Interrupt] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    state: bytes | None = None
    graph: bool = False
    """Whether its values are those of a graph, which keeps them in pieces."""
    created_at: float


class RunEnd(Record, kw_only=True):
    """How a run ended, and what it returned: the values of its thread then.

    A graph with an output schema returns only the values in it.
    """

    run: Run
    values: Any = None
    interrupts: list[Interrupt] = field(default_factory=list)
