"""The interface of agents, their context, and their exceptions."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Final, Protocol, TypeVar

from perdure.agents.records import AgentSpec, PhaseContext, RecordedSpan
from perdure.checkpoints.records import CheckpointQuery, GraphDelta, GraphDeltaQuery, GraphSteps, GraphTuple
from perdure.items.calls import ItemCalls
from perdure.kernel.errors import PerdureError
from perdure.streams.model import Shown

T = TypeVar("T")

Branch = tuple[int, ...]
"""Path of a task of an agent: its place below the tasks that started it."""

LONG_KEY: Final = 1000
"""Length limit of step keys that name the calling steps."""

_branch: ContextVar[tuple[object, Branch]] = ContextVar("branch")
_numbers = itertools.count(1)


def current_branch() -> Branch:
    """Return the branch of the current task of the agent."""
    task = asyncio.current_task()
    owner, branch = _branch.get((None, ()))
    return branch if owner is task else enter_branch((*branch, next(_numbers)))


enclosing_step: ContextVar[str | None] = ContextVar("enclosing_step", default=None)
"""The step whose action calls this code."""


@contextmanager
def executing(step: str) -> Iterator[None]:
    """Mark that the action of a step is executing."""
    token = enclosing_step.set(step)
    try:
        yield
    finally:
        enclosing_step.reset(token)


def call_from_thread(coroutine: Callable[[], Awaitable[T]], loop: asyncio.AbstractEventLoop) -> T:
    """Run a coroutine in a loop and wait for it; all calls of one thread are one branch."""
    branch = (-threading.get_ident(),)

    async def awaited() -> T:
        enter_branch(branch)
        return await coroutine()

    return asyncio.run_coroutine_threadsafe(awaited(), loop).result()


def enter_branch(branch: Branch) -> Branch:
    """Make the current task the continuation of a branch."""
    _branch.set((asyncio.current_task(), branch))
    return branch


class AgentError(PerdureError, RuntimeError):
    """Error of an agent.

    `error` is the class that callers see; a `retriable` error is retried while attempts are left. For a
    phase, `stop_reason` says why it stopped, and `output` is its partial result.
    """

    code = "agent_error"

    def __init__(
        self,
        message: str | None = None,
        *,
        error: str = "AgentError",
        retriable: bool = False,
        stop_reason: str | None = None,
        output: str | None = None,
    ) -> None:
        super().__init__(message)
        self.error = error
        self.retriable = retriable
        self.stop_reason = stop_reason
        self.output = output


class Interrupted(BaseException):
    """Raised inside an agent by `interrupt`: the run ends, and its thread waits for an answer.

    This is not an `Exception`, so that `except Exception` in an agent does not catch it.
    """

    def __init__(self, interrupts: list[dict[str, Any]]) -> None:
        super().__init__("the agent waits for an answer")
        self.interrupts = interrupts


class Cancelled(BaseException):
    """Raised inside a cancelled agent; `action` is interrupt, rollback, timeout, lost or shutdown."""

    def __init__(self, action: str) -> None:
        super().__init__(f"the run was cancelled: {action}")
        self.action = action


class Retriable(Exception):
    """Raised by an agent for a temporary error: the run is retried, after `after` seconds if given."""

    def __init__(
        self, message: str = "the agent asks for another attempt", *, after: float | None = None
    ) -> None:
        super().__init__(message)
        self.after = after


class StepKeys:
    """Keys of an attempt's steps, assigned at their start and equal in each attempt, also for parallel steps.

    A step that is called by the action of another one has a key below it, because later attempts skip that
    action once the outer step is stored.
    """

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def next(self, name: str) -> str:
        """Return the key of the step that starts now."""
        key = name if (caller := enclosing_step.get()) is None else _build_key_below(caller, name)
        self._seen[key] += 1
        number = self._seen[key]
        return key if number == 1 else f"{key}#{number}"


def _build_key_below(caller: str, name: str) -> str:
    key = f"{caller} > {name}"
    return key if len(key) <= LONG_KEY else f"{sha256(caller.encode()).hexdigest()} > {name}"


class StepResult:
    """An action of `Context.step` whose result is already known from another process."""

    def __init__(
        self, value: Any, *, key: str | None = None, start_time: float | None = None, traced: bool = False
    ) -> None:
        self.value = value
        self.key = key
        """The key of the step, if the other process has numbered it."""
        self.start_time = start_time
        """The start of the step in epoch seconds."""
        self.traced = traced
        """True if the other process has recorded the span of the step."""

    def __call__(self) -> Any:
        return self.value


class GraphCheckpoints(Protocol):
    """The checkpoints of a graph: store those of the run, find those of the thread."""

    def put(self, steps: GraphSteps) -> None:
        """Store steps, from any thread. They are durable no later than the run's next event."""
        ...

    async def ready(self) -> None:
        """Wait while too many writes are pending; raise `Cancelled` if the run was cancelled."""
        ...

    async def settle(self) -> None:
        """Wait until all stored steps are durable."""
        ...

    async def find(self, query: CheckpointQuery) -> list[GraphTuple]: ...

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]: ...

    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call one of the async methods from a thread that cannot await."""
        ...


class MemorySearch(Protocol):
    """Search in the memory of the run's namespace."""

    async def search(self, query: str, **filters: Any) -> Any:
        """Find events and summaries (`perdure.memory.records.SearchResult`), each with its events.

        Filters are those of `Memory.search`: `mode`, `kind`, `agent`, `since_ms`, `until_ms`, `limit`,
        `text_weight` and `vector_weight`.
        """
        ...


class Context(Protocol):
    """Context of a run for its agent."""

    run_id: str
    thread_id: str
    assistant_id: str
    attempt: int
    """1 for the first attempt; more after a retry."""
    config: Mapping[str, Any]
    context: Mapping[str, Any]
    metadata: Mapping[str, Any]
    options: Mapping[str, Any]
    stream_mode: tuple[str, ...]
    command: Mapping[str, Any] | None
    from_checkpoint: str | None
    """The checkpoint from which the run starts, if it is not the thread's latest."""
    logger: logging.LoggerAdapter[Any]
    phase: PhaseContext | None
    """The workflow phase that the agent executes; None for other runs."""

    async def emit(self, data: Any, event: str = "custom") -> None:
        """Append an event to the run's stream. It is durable soon after this returns.

        Wait while too many events are pending, so that memory stays bounded.
        """
        ...

    async def emit_json(self, body: str, event: str, shown: Shown | None = None) -> None:
        """Append an event whose data is already JSON on one line.

        With `shown` it is stored as a reference to a checkpoint of this run with the same text.
        """
        ...

    @property
    def session_id(self) -> str:
        """Return the session of the agent's messages: by default its thread, or its run if there is none."""
        ...

    async def session(self, id: str | None = None, cwd: str | None = None) -> str:
        """Write to another session from now on, or to one of a working directory; return its id."""
        ...

    async def message(
        self,
        role: str,
        content: Any,
        model: str | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a message of user, assistant or system to the session: a text, or a list of blocks.

        Each attempt writes its messages. Inside a `step`, a message is written once.
        """
        ...

    async def tool_result(self, id: str, content: Any, is_error: bool = False) -> None:
        """Write the result of the tool call with this id to the session."""
        ...

    async def usage(
        self,
        *,
        cost_usd: float | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cache_read_input_tokens: int | None = None,
        cache_creation_input_tokens: int | None = None,
        turns: int | None = None,
        duration_ms: int | None = None,
        api_duration_ms: int | None = None,
        stop_reason: str | None = None,
    ) -> None:
        """Write the usage of this attempt so far to the session; the last figures count.

        Those of a phase are also in its execution at once. If the `stop_reason` is a failure, such as
        `max_tokens` or `error_quota`, the phase fails.
        """
        ...

    async def transcript(self, line: Mapping[str, Any]) -> bool:
        """Write a line of Claude Code, Codex or pi to the session; return False for any other line."""
        ...

    async def step(self, name: str, action: Callable[[], T | Awaitable[T]]) -> T:
        """Execute an action once and store its result; later attempts get the stored result."""
        ...

    async def save(
        self,
        values: Any,
        *,
        next: tuple[str, ...] = (),
        interrupts: Sequence[Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
        state: bytes | None = None,
        checkpoint_id: str | None = None,
        parent_id: str | None = None,
        quiet: bool = False,
    ) -> str:
        """Save a state of the thread durably and append a `values` event; return the checkpoint's id.

        `interrupts` are questions to a person, each with an `id` and a `value`. A `quiet` save appends no
        event; the agent emits it itself.
        """
        ...

    def end_replay(self) -> None:
        """Append all further events, also those that an earlier attempt may have emitted."""
        ...

    @property
    def steps(self) -> Mapping[str, Any]:
        """Return the stored results of `step` by name, including those of earlier attempts."""
        ...

    async def load(self) -> Any:
        """Return the values of the state from which this run continues, or None."""
        ...

    @property
    def checkpoint(self) -> Any:
        """Return the checkpoint of `load` (`perdure.threads.records.Checkpoint`), or None."""
        ...

    @property
    def graph(self) -> GraphCheckpoints:
        """Return the checkpoints of a graph agent, which uses them instead of `save`."""
        ...

    @property
    def items(self) -> ItemCalls | None:
        """Items: values beyond the thread, by namespace and key; None without a database."""
        ...

    @property
    def memory(self) -> MemorySearch | None:
        """Memory: earlier events of any run; None without a database."""
        ...

    async def interrupt(self, value: Any) -> Any:
        """Ask a person: the run ends here, and a later run with `command.resume` gets the answer here."""
        ...

    async def heartbeat(self) -> None:
        """Let other tasks run, and raise `Cancelled` if the run was cancelled."""
        ...

    @property
    def cancelled(self) -> bool:
        """True if the run was cancelled; for code that cannot be interrupted. Safe from any thread."""
        ...

    def idempotency_key(self, name: str = "") -> str:
        """Return an idempotency key for a side effect, the same in every attempt of this run."""
        ...

    async def resources(self) -> Any:
        """Return the resources of the run (`NamedResources`), or None."""
        ...

    @property
    def tracer(self) -> Any:
        """Return an OpenTelemetry tracer whose spans are stored with the run."""
        ...

    @property
    def traceparent(self) -> str | None:
        """Return the span of this attempt as a W3C header, which ends in 1 if the attempt is traced."""
        ...

    @property
    def trace_content(self) -> bool:
        """True if messages, arguments and results may be recorded."""
        ...

    def record_span(self, span: RecordedSpan) -> None:
        """Store a span that has ended. Without ids it is below the attempt's span. Safe from any thread."""
        ...

    def call(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        """For a sync agent, from its own thread: run one of the methods above and wait for it."""
        ...


class Agent(Protocol):
    """An agent: a spec, and a method that executes it."""

    spec: AgentSpec
    blocking: bool
    """True to run in a separate thread, because the agent would block the event loop."""

    async def run(self, ctx: Context, input: Any) -> Any:
        """Execute the agent; return the final values of the thread, or None to keep the last saved ones.

        A cancelled agent stops; code that does not stop within a few seconds is abandoned.
        """
        ...
