"""What passes between a worker and whoever gives it runs: the database here, or a server elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import field

from perdure.agents.records import AgentSpec
from perdure.graphs.records import GraphDelta, GraphDeltaQuery, GraphQuery, GraphSteps, GraphTuple
from perdure.items.records import ItemOp, ItemResult
from perdure.streams.model import NewEvent
from perdure.threads.records import Checkpoint, Failure, NewCheckpoint, Run

Verdict = Literal["go", "interrupt", "rollback", "lost"]
"""What a worker is told of a run that it holds: go on, stop as asked, or that it holds it no longer."""

Result = Literal["success", "error", "timeout", "retriable", "stopped"]
"""How an attempt ended: `retriable` is tried again if it may be, `stopped` confirms a cancel."""


class Lease(msgspec.Struct, frozen=True):
    """A claim on a run: the attempt is the token that every write of its worker carries."""

    run_id: str
    thread_id: str
    attempt_id: str


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A run that a worker has claimed, with everything that its agent needs to begin or to go on."""

    run: Run
    attempt_id: str
    attempt: int
    """The number of this attempt, from 1."""
    last_attempt: bool
    """Whether a failure now would be final."""
    config: dict[str, Any]
    """Of the assistant, the thread and the run; the latter wins."""
    context: dict[str, Any]
    timeout_seconds: float | None
    lease_seconds: float
    origin: str
    """The run whose kept steps count: itself, or the interrupted one that it resumes."""
    checkpoint: Checkpoint | None = None
    """Where to go on from."""
    steps: dict[str, str] = field(default_factory=dict)
    """What `keep` stored for the origin, as JSON by name."""
    resources_id: str | None = None
    last_seq: int = 0
    """The number of the last event in the run's stream."""

    @property
    def held(self) -> Lease:
        return Lease(self.run.run_id, self.run.thread_id, self.attempt_id)


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended. Its last events, its last checkpoint and its status are one transaction."""

    held: Lease
    result: Result
    error: Failure | None = None
    retry_after: float | None = None
    """Seconds of back-off before the next attempt."""
    checkpoint: NewCheckpoint | None = None
    events: Sequence[NewEvent] = ()
    graph: GraphSteps | None = None
    """What the run's graph has done that is still to be kept."""


class RunQueue(Protocol):
    """What a worker needs. Every write is refused with `Fenced` once its attempt holds the run no longer."""

    async def register(
        self, worker_id: str, agents: Sequence[AgentSpec], concurrency: int | None = None
    ) -> None:
        """Say which agents this worker can run, and how many runs at once; each gets its system assistant."""
        ...

    async def claim(self, worker_id: str, limit: int, wait: float) -> list[Assignment]:
        """Up to `limit` runs, as soon as there is one; none if none came within `wait` seconds."""
        ...

    async def renew(self, worker_id: str, held: Sequence[Lease]) -> list[Verdict]:
        """Keep the leases; the verdicts are in the order of `held`."""
        ...

    async def controls(self, held: Sequence[Lease], wait: float) -> dict[str, Verdict]:
        """The runs among `held` that are not to go on, as soon as there is one, or after `wait` seconds."""
        ...

    async def append(self, held: Lease, events: Sequence[NewEvent], after: int | None = None) -> int:
        """Add events to the run's stream; gives the `seq` of the last one once they are durable.

        With `after`, the `seq` that they follow, a repeated call is answered without doing it again.
        """
        ...

    async def save(
        self, held: Lease, checkpoint: NewCheckpoint, events: Sequence[NewEvent] = ()
    ) -> Checkpoint:
        """Keep a state of the thread, with the events that tell of it."""
        ...

    async def record(
        self, held: Lease, steps: GraphSteps, events: Sequence[NewEvent] = (), after: int | None = None
    ) -> int:
        """Keep what the run's graph has done, with events; the answer, and `after`, are those of `append`."""
        ...

    async def find_graphs(self, held: Lease, query: GraphQuery) -> list[GraphTuple]:
        """Checkpoints of the graphs of the run's thread."""
        ...

    async def find_deltas(self, held: Lease, query: GraphDeltaQuery) -> list[GraphDelta]:
        """What the ancestors of a checkpoint say of channels that are kept as changes."""
        ...

    async def do_items(self, ops: Sequence[ItemOp]) -> list[ItemResult]:
        """Read and change what is remembered beyond threads."""
        ...

    async def keep(self, held: Lease, origin: str, name: str, body: str) -> None:
        """Keep the result of a step, for every later attempt of this run and of those that resume it."""
        ...

    async def finish(self, ending: Ending) -> Run:
        """End the attempt. Doing it twice does it once."""
        ...

    async def hand_back(self, held: Sequence[Lease]) -> None:
        """Give runs back, uncharged and at their old place, so that another worker goes on at once."""
        ...

    async def close(self) -> None: ...
