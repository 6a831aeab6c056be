"""Records of threads, runs and checkpoints, and the requests for them. Times are epoch seconds."""

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
    """Why a run failed: the class and message of the exception."""

    error: str
    message: str


class Interrupt(Record, kw_only=True):
    """Question that a run asks a person and waits for."""

    id: str
    value: Any = None
    task_id: str | msgspec.UnsetType = msgspec.UNSET
    """The graph task that asks."""


class RunCommand(Record, kw_only=True):
    """How a run continues from where its thread stopped: `resume` answers an interrupt."""

    resume: Any = msgspec.UNSET
    update: Any = msgspec.UNSET
    goto: Any = msgspec.UNSET


class RunRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Request to create a run."""

    assistant_id: str
    """ID of an assistant, or name of an agent."""
    thread_id: str | None = None
    """Thread to run on. Without one, the run gets its own thread."""
    input: Any = None
    command: RunCommand | None = None
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    inherit_metadata: bool = False
    """Merge the run's metadata over its assistant's and thread's, and add the assistant to the thread's."""
    checkpoint_id: str | None = None
    """Checkpoint to continue from, instead of the thread's latest."""
    multitask_strategy: MultitaskStrategy = "reject"
    if_not_exists: IfNotExists = "reject"
    after_seconds: Delay | None = None
    on_disconnect: OnDisconnect = "continue"
    on_completion: OnCompletion | None = None
    """What happens to the run's own thread. `delete` removes both when the run ends, unless it fails; `keep`
    keeps them; by default they are kept for `retention_temporary`."""
    webhook: str | None = None
    stream_mode: list[str] = field(default_factory=lambda: ["values"])
    options: dict[str, Any] = field(default_factory=dict)
    """Options of one kind of agent, such as `stream_subgraphs` or `interrupt_before` of a graph."""
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    timeout_seconds: Limit | None = None
    """Timeout of an attempt; by default the agent's or the server's."""
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    """Largest number of attempts; by default BG_JOB_MAX_RETRIES."""
    traceparent: str | None = None
    """W3C trace context of the caller. The run continues that trace."""


class RunKwargs(Record, kw_only=True):
    """Input and options of a run, as requested."""

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
    """The name of the assistant's agent."""
    status: RunStatus
    metadata: dict[str, Any]
    kwargs: RunKwargs
    multitask_strategy: MultitaskStrategy
    created_at: float
    """Time of the request, plus its delay."""
    updated_at: float
    ended_at: float | None = None
    attempt: int = 0
    """Number of attempts that have started."""
    error: Failure | None = None
    temporary: bool = False
    """True if the thread is deleted with the run."""
    on_disconnect: OnDisconnect = "continue"
    webhook: str | None = None
    """URL that receives the end of the run, with credentials masked."""
    session_id: str | None = None
    """Session that stores the agent's messages, once there are any."""
    kind: RunKind = "run"
    """`phase` if a workflow or a chat created it."""
    parent: str | None = None
    """Workflow run that the phase belongs to."""


class Thread(Record, kw_only=True):
    """Thread: a state, and the runs that change it one at a time."""

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
    """How long a thread lives, and what remains afterwards: nothing, or its latest state."""

    minutes: float
    strategy: PruneStrategy = "delete"
    expires_at: float | None = None


class NewCheckpoint(msgspec.Struct, kw_only=True, frozen=True):
    """State to store. `state` is the agent's own encoding, which only the agent reads."""

    values: Any = None
    next: list[str] = field(default_factory=list)
    """Nodes that run next; a state with next nodes is not finished."""
    interrupts: list[Interrupt] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    state: bytes | None = None
    checkpoint_id: str | None = None
    parent_id: str | None = None


class Checkpoint(Record, kw_only=True):
    """Stored state of a thread."""

    thread_id: str
    checkpoint_id: str
    parent_id: str | None = None
    run_id: str | None = None
    attempt: int | None = None
    step: int
    """Number of the state within the thread, from 0."""
    values: Any = None
    next: list[str] = field(default_factory=list)
    interrupts: list[Interrupt] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    state: bytes | None = None
    graph: bool = False
    """True if a graph stores the values in pieces."""
    created_at: float


class RunEnd(Record, kw_only=True):
    """End of a run, with the values that it returned: those of its thread at that time.

    A graph with an output schema returns only the values in it.
    """

    run: Run
    values: Any = None
    interrupts: list[Interrupt] = field(default_factory=list)
