"""What passes between a worker and the queue of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import field

from perdure.checkpoints.records import GraphSteps
from perdure.kernel.errors import PerdureError
from perdure.service.endpoints import MAX_BATCH, Refusal, WireForm
from perdure.streams.model import NewEvent
from perdure.streams.operations import AppendedEvents
from perdure.threads.records import Checkpoint, Failure, NewCheckpoint, Run
from perdure.threads.rows import RunRow, ThreadAnswer

T = TypeVar("T")

Verdict = Literal["go", "interrupt", "rollback", "lost"]
"""What a worker is told of a run that it holds: go on, stop as asked, or that it holds it no longer."""

MAX_OUTPUT = 1 << 20
"""How many characters the output of a phase may have; what is longer is cut."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

Result = Literal["success", "error", "timeout", "retriable", "stopped"]
"""How an attempt ended: `retriable` is tried again if it may be, `stopped` confirms a cancel."""


class Lease(msgspec.Struct, frozen=True):
    """A claim on a run: the attempt is the token that every write of its worker carries."""

    run_id: str
    thread_id: str
    attempt_id: str

    @property
    def name(self) -> str:
        """How the audit names it."""
        return self.run_id + "/" + self.attempt_id


class PhaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The phase that a worker executes. Its input was rendered when it was claimed."""

    workflow_run_id: str | None = None
    label: str | None = None
    iteration: int = 0
    sandbox: str | None = None
    """The sandbox in which it must be executed."""
    network: bool = False
    """Whether it has a network there."""


def phase_facts(run: Run) -> PhaseFacts:
    """What the pointer of a phase says of it; what it does not say is left out."""
    pointer = run.kwargs.input
    known = pointer if isinstance(pointer, dict) else {}
    label, iteration, sandbox = known.get("label"), known.get("iteration"), known.get("sandbox")
    return PhaseFacts(
        workflow_run_id=run.parent,
        label=label if isinstance(label, str) else None,
        iteration=iteration if isinstance(iteration, int) else 0,
        sandbox=sandbox if isinstance(sandbox, str) else None,
        network=known.get("network") is True,
    )


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
    """The run's own timeout."""
    lease_seconds: float
    origin: str
    """The run whose kept steps count: itself, or the interrupted one that it resumes."""
    checkpoint: Checkpoint | None = None
    """Where to go on from."""
    steps: dict[str, str] = field(default_factory=dict)
    """What `keep` stored for the origin, as JSON by name."""
    saved_at: dict[str, int] = field(default_factory=dict)
    """Which of them earlier attempts of this run saved, and how many events its stream had then.

    All that was emitted before such a step is among those events.
    """
    resources_id: str | None = None
    last_seq: int = 0
    """The number of the last event in the run's stream."""
    begun: bool = False
    """Whether that event tells already that this attempt has begun."""
    phase: PhaseFacts | None = None
    """What a phase is a part of; None for a run."""
    server_timeout_seconds: float | None = None
    """The timeout that the server sets for runs that have none of their own, nor of their agent."""

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
    output_text: Annotated[str, msgspec.Meta(max_length=MAX_OUTPUT)] | None = None
    """What a phase returned, as a text: the output that its workflow goes on with."""
    stop_reason: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    """Why a phase stopped: success, unknown, error_fatal, error_exit_1 and so on."""
    turns: Count | None = None
    api_duration_ms: Count | None = None


class RunAppend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events of one run, in their order; `after` is the number of the event that they follow."""

    held: Lease
    events: Annotated[Sequence[NewEvent], msgspec.Meta(max_length=10 * MAX_BATCH)]
    after: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None


class SessionLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of a session that an attempt has written, each a JSON object, numbered from `first` on."""

    held: Lease
    session_id: str
    project: str
    lines: Annotated[Sequence[str], msgspec.Meta(max_length=MAX_BATCH)]
    first: Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class UsageReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an attempt of a phase has taken so far, and the session that it writes to."""

    held: Lease
    session_id: str
    cost_usd: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    turns: Count | None = None
    api_duration_ms: Count | None = None


# --- answers item by item ---------------------------------------------------------------------------------


class RunAppendResults(msgspec.Struct, kw_only=True):
    """The number of the last event of each item, or why it was refused."""

    results: list[int | Refusal]


class EndedRun(msgspec.Struct, kw_only=True):
    """A run after its attempt has ended, or why the ending was refused."""

    run: Run | None = None
    error: Refusal | None = None


class FinishResults(msgspec.Struct, kw_only=True):
    """What became of each ending, in the order of the request."""

    results: list[EndedRun]


def or_raise(answer: T | PerdureError) -> T:
    """The answer to one item, or its error raised."""
    if isinstance(answer, PerdureError):
        raise answer
    return answer


def _appended(answers: Sequence[int | PerdureError]) -> RunAppendResults:
    return RunAppendResults(
        results=[Refusal.of(each) if isinstance(each, PerdureError) else each for each in answers]
    )


def _ended(answers: Sequence[Run | PerdureError]) -> FinishResults:
    return FinishResults(
        results=[
            EndedRun(error=Refusal.of(each)) if isinstance(each, PerdureError) else EndedRun(run=each)
            for each in answers
        ]
    )


def _runs(found: FinishResults) -> list[Run | PerdureError]:
    return [each.error.error if each.error is not None else cast(Run, each.run) for each in found.results]


APPENDED = WireForm(
    RunAppendResults,
    _appended,
    lambda found: [each.error if isinstance(each, Refusal) else each for each in found.results],
)
ENDED = WireForm(FinishResults, _ended, _runs)


class Finished(msgspec.Struct, frozen=True):
    """An attempt that has ended; if its run has ended too, the run, where the end of its stream stands, and
    its thread if it is known with its state."""

    run_id: str
    placed: AppendedEvents | None = None
    run: RunRow | None = None
    thread: ThreadAnswer | None = None
