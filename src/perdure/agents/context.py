"""What an agent is given: where it runs, and what it can do there."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from perdure.graphs.records import GraphDelta, GraphDeltaQuery, GraphQuery, GraphSteps, GraphTuple
from perdure.items.calls import ItemCalls
from perdure.kernel.errors import PerdureError
from perdure.streams.model import Shown

T = TypeVar("T")


class AgentError(PerdureError, RuntimeError):
    """The agent failed.

    `error` is the class that is shown as the reason; a `retriable` one is tried again, if it may be.
    """

    code = "agent_error"

    def __init__(
        self, message: str | None = None, *, error: str = "AgentError", retriable: bool = False
    ) -> None:
        super().__init__(message)
        self.error = error
        self.retriable = retriable


class Interrupted(BaseException):
    """Raised inside an agent by `interrupt`: the run ends, and its thread waits for an answer.

    It is no `Exception`, so that an agent which catches everything does not catch it.
    """

    def __init__(self, interrupts: list[dict[str, Any]]) -> None:
        super().__init__("the agent waits for an answer")
        self.interrupts = interrupts


class Cancelled(BaseException):
    """Raised inside an agent that was asked to stop; `action` is interrupt, rollback, lost or shutdown."""

    def __init__(self, action: str) -> None:
        super().__init__(f"the run was asked to stop: {action}")
        self.action = action


class Retriable(Exception):
    """Raised by an agent whose failure may pass: the run is tried again, after `after` seconds if given."""

    def __init__(
        self, message: str = "the agent asks for another attempt", *, after: float | None = None
    ) -> None:
        super().__init__(message)
        self.after = after


class GraphCheckpoints(Protocol):
    """Where the graph of a run keeps its checkpoints, and finds those of its thread."""

    def put(self, steps: GraphSteps) -> None:
        """Send something on its way, from any thread. It is durable no later than the run's next event."""
        ...

    async def ready(self) -> None:
        """Wait while too much is on its way; raise `Cancelled` if the run is not to go on."""
        ...

    async def settle(self) -> None:
        """Wait until everything that was put is durable."""
        ...

    async def find(self, query: GraphQuery) -> list[GraphTuple]: ...

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]: ...

    def wait(self, asking: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do one of the above from a thread that cannot await."""
        ...


class Context(Protocol):
    """A run, as its agent sees it."""

    run_id: str
    thread_id: str
    assistant_id: str
    attempt: int
    """1 at first; more after a retry."""
    config: Mapping[str, Any]
    context: Mapping[str, Any]
    metadata: Mapping[str, Any]
    options: Mapping[str, Any]
    stream_mode: tuple[str, ...]
    command: Mapping[str, Any] | None
    from_checkpoint: str | None
    """The checkpoint that the run was asked to go on from, instead of the thread's latest."""
    logger: logging.LoggerAdapter[Any]

    async def emit(self, data: Any, event: str = "custom") -> None:
        """Add an event to the run's stream. It is on its way when this returns, and durable soon after.

        It waits while too much is on its way, so that a flood never grows memory.
        """
        ...

    async def emit_json(self, body: str, event: str, shown: Shown | None = None) -> None:
        """The same for data that is JSON already, on one line.

        With `shown` it is stored as a reference to a checkpoint of this run which gives the same text.
        """
        ...

    async def step(self, name: str, action: Callable[[], T | Awaitable[T]]) -> T:
        """Do something once: its result is kept, and later attempts get it without doing it again."""
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
        """Keep a state of the thread, durably, and tell the stream of it; gives the checkpoint's id.

        `interrupts` are what a person is to answer, each with an `id` and a `value`. A `quiet` save adds no
        `values` event: the agent tells the stream itself.
        """
        ...

    @property
    def steps(self) -> Mapping[str, Any]:
        """The results that `step` has kept so far, by name, those of earlier attempts included."""
        ...

    async def load(self) -> Any:
        """The values of the thread's last state that this run may go on from, or None."""
        ...

    @property
    def checkpoint(self) -> Any:
        """The whole checkpoint that `load` speaks of (`perdure.threads.records.Checkpoint`), or None."""
        ...

    @property
    def graph(self) -> GraphCheckpoints:
        """Where an agent that is a graph keeps its state, instead of with `save`."""
        ...

    @property
    def items(self) -> ItemCalls | None:
        """What is remembered beyond the thread, by namespace and key; None where there is no database."""
        ...

    async def interrupt(self, value: Any) -> Any:
        """Ask a person: the run ends here, and a later run with `command.resume` gets the answer here."""
        ...

    async def heartbeat(self) -> None:
        """Let others in, and raise `Cancelled` if the run was asked to stop."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop; for code that cannot be interrupted. Safe from any thread."""
        ...

    def idempotency_key(self, name: str = "") -> str:
        """A key for a side effect: the same in every attempt of this run."""
        ...

    async def resources(self) -> Any:
        """The resources that the run was made with (`NamedResources`), or None."""
        ...

    @property
    def tracer(self) -> Any:
        """An OpenTelemetry tracer whose spans are stored with the run."""
        ...

    def call(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        """For a sync agent, from its own thread: run one of the methods above and wait for it."""
        ...
