"""What passes between a remote worker and the server, beyond the records of `perdure.threads.work`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from perdure.agents.records import AgentSpec
from perdure.client.native_wire import MAX_BATCH, Body, Name
from perdure.graphs.records import GraphDelta, GraphDeltaQuery, GraphQuery, GraphSteps, GraphTuple
from perdure.streams.model import NewEvent
from perdure.threads.records import NewCheckpoint, Run
from perdure.threads.work import Assignment, Ending, Lease, Verdict

MAX_WAIT_SECONDS = 30.0

Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)]
Many = Annotated[list[Lease], Meta(max_length=MAX_BATCH)]
After = Annotated[int, Meta(ge=0, le=2**53)]
"""The number of the last event that the worker knows of: what it sends comes right after that, and once."""


class Registration(Body, kw_only=True):
    """Which agents a worker can run, and how many runs at once."""

    worker_id: Name
    agents: Annotated[list[AgentSpec], Meta(max_length=MAX_BATCH)]
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] | None = None


class Claim(Body, kw_only=True):
    """Who claims how many runs, and how long it waits for the first."""

    worker_id: Name
    limit: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 1
    wait: Wait = 0.0


class Assignments(msgspec.Struct, kw_only=True):
    """The runs that were claimed; none if none came in time."""

    assignments: list[Assignment]


class Renewal(Body, kw_only=True):
    """Whose leases are kept."""

    worker_id: Name
    held: Many


class Verdicts(msgspec.Struct, kw_only=True):
    """What is to become of each run, in the order of the request."""

    verdicts: list[Verdict]


class Watch(Body, kw_only=True):
    """Which runs are watched, and for how long."""

    held: Many
    wait: Wait = 0.0


class Controls(msgspec.Struct, kw_only=True):
    """The runs that are not to go on, by their ids."""

    controls: dict[str, Verdict]


class Append(Body, kw_only=True):
    """Events of one run, in their order."""

    held: Lease
    events: Annotated[list[NewEvent], Meta(max_length=10 * MAX_BATCH)]
    after: After | None = None


class Appends(Body, kw_only=True):
    """Events of many runs."""

    appends: Annotated[list[Append], Meta(max_length=MAX_BATCH)]


class Refusal(msgspec.Struct, kw_only=True, frozen=True):
    """Why one item of a list was refused; its neighbours were not."""

    code: str
    detail: str


class Appended(msgspec.Struct, kw_only=True):
    """The number of the last event of each item, or why it was refused."""

    results: list[int | Refusal]


class SavedState(Body, kw_only=True):
    """A state of the thread that a run keeps, with the events that tell of it."""

    held: Lease
    checkpoint: NewCheckpoint
    events: list[NewEvent] = msgspec.field(default_factory=list)
    after: After | None = None


class Steps(Body, kw_only=True):
    """What the graph of a run has done, with events in their order."""

    held: Lease
    steps: GraphSteps
    events: Annotated[list[NewEvent], Meta(max_length=10 * MAX_BATCH)] = msgspec.field(default_factory=list)
    after: After | None = None


class RecordSteps(msgspec.Struct, kw_only=True):
    """The number of the run's last event."""

    seq: int


class GraphSearch(Body, kw_only=True):
    """Which checkpoints of the graphs of a run's thread are wanted."""

    held: Lease
    query: GraphQuery


class FoundGraphs(msgspec.Struct, kw_only=True):
    """The checkpoints, the newest first."""

    found: list[GraphTuple]


class DeltaSearch(Body, kw_only=True):
    """Which channels are wanted that are kept as changes."""

    held: Lease
    query: GraphDeltaQuery


class FoundDeltas(msgspec.Struct, kw_only=True):
    """What is known of each channel."""

    found: list[GraphDelta]


class KeptStep(Body, kw_only=True):
    """The result of a step, as JSON."""

    held: Lease
    origin: str
    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    body: str


class Endings(Body, kw_only=True):
    """How attempts ended."""

    endings: Annotated[list[Ending], Meta(max_length=MAX_BATCH)]


class Ended(msgspec.Struct, kw_only=True):
    """How a run stands now, or why its ending was refused."""

    run: Run | None = None
    error: Refusal | None = None


class Results(msgspec.Struct, kw_only=True):
    """What became of each ending, in the order of the request."""

    results: list[Ended]


class Release(Body, kw_only=True):
    """Runs that a worker gives back."""

    held: Many
