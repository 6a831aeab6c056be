"""Messages between a worker and the queue of runs."""

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
"""Answer to a worker about a run that it holds: continue, stop as requested, or the lease is lost."""

MAX_OUTPUT = 1 << 20
"""Largest number of characters in the output of a phase; the rest is cut off."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

Result = Literal["success", "error", "timeout", "retriable", "stopped"]
"""How an attempt ended: `retriable` allows another attempt, `stopped` confirms a cancel."""


class Lease(msgspec.Struct, frozen=True):
    """Claim on a run. The attempt is the token that every write of its worker carries."""

    run_id: str
    thread_id: str
    attempt_id: str

    @property
    def name(self) -> str:
        """Name of the lease in the audit log."""
        return self.run_id + "/" + self.attempt_id


class PhaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Phase that a worker executes. Its input is rendered at the claim."""

    workflow_run_id: str | None = None
    label: str | None = None
    iteration: int = 0
    sandbox: str | None = None
    """Sandbox that must execute the phase."""
    network: bool = False
    """True if the sandbox has network access."""


def phase_facts(run: Run) -> PhaseFacts:
    """Parse the facts of a phase from its input. Missing or invalid values are left out."""
    pointer = run.kwargs.input
    fields = pointer if isinstance(pointer, dict) else {}
    label, iteration, sandbox = fields.get("label"), fields.get("iteration"), fields.get("sandbox")
    return PhaseFacts(
        workflow_run_id=run.parent,
        label=label if isinstance(label, str) else None,
        iteration=iteration if isinstance(iteration, int) else 0,
        sandbox=sandbox if isinstance(sandbox, str) else None,
        network=fields.get("network") is True,
    )


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Claimed run, with everything that its agent needs to start or continue."""

    run: Run
    attempt_id: str
    attempt: int
    """Number of this attempt, from 1."""
    last_attempt: bool
    """True if a failure now would be final."""
    config: dict[str, Any]
    """Config of the assistant, the thread and the run; later ones win."""
    context: dict[str, Any]
    timeout_seconds: float | None
    """The run's own timeout."""
    lease_seconds: float
    origin: str
    """Run whose stored steps are reused: this run, or the interrupted run that it resumes."""
    checkpoint: Checkpoint | None = None
    """State to continue from."""
    steps: dict[str, str] = field(default_factory=dict)
    """Results of `keep` for the origin, as JSON by name."""
    saved_at: dict[str, int] = field(default_factory=dict)
    """Steps that earlier attempts of this run saved, with the number of events in the stream at that time.

    Those events include all events emitted before the step.
    """
    resources_id: str | None = None
    last_seq: int = 0
    """Number of the last event in the run's stream."""
    begun: bool = False
    """True if that event announces the start of this attempt."""
    phase: PhaseFacts | None = None
    """Facts of the phase; None for a run."""
    server_timeout_seconds: float | None = None
    """Timeout for runs without their own timeout or one of their agent."""

    @property
    def held(self) -> Lease:
        return Lease(self.run.run_id, self.run.thread_id, self.attempt_id)


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """End of an attempt. Its last events, its last checkpoint and its status are one transaction."""

    held: Lease
    result: Result
    error: Failure | None = None
    retry_after: float | None = None
    """Delay before the next attempt, in seconds."""
    checkpoint: NewCheckpoint | None = None
    events: Sequence[NewEvent] = ()
    graph: GraphSteps | None = None
    """Work of the run's graph that is not stored yet."""
    output_text: Annotated[str, msgspec.Meta(max_length=MAX_OUTPUT)] | None = None
    """Text output of a phase, which its workflow uses."""
    stop_reason: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    """Why a phase stopped: success, unknown, error_fatal, error_exit_1 and so on."""
    turns: Count | None = None
    api_duration_ms: Count | None = None


class RunAppend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events of one run, in order; `after` is the number of the event before them."""

    held: Lease
    events: Annotated[Sequence[NewEvent], msgspec.Meta(max_length=10 * MAX_BATCH)]
    after: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None


class SessionLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Session lines that an attempt wrote, each a JSON object, numbered from `first` on."""

    held: Lease
    session_id: str
    project: str
    lines: Annotated[Sequence[str], msgspec.Meta(max_length=MAX_BATCH)]
    first: Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class UsageReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Usage of a phase's attempt so far, and the session that it writes to."""

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
    """Number of the last event for each item, or why the item was refused."""

    results: list[int | Refusal]


class EndedRun(msgspec.Struct, kw_only=True):
    """Run after the end of its attempt, or why the ending was refused."""

    run: Run | None = None
    error: Refusal | None = None


class FinishResults(msgspec.Struct, kw_only=True):
    """Result of each ending, in the order of the request."""

    results: list[EndedRun]


def or_raise(answer: T | PerdureError) -> T:
    """Return the answer to one item, or raise its error."""
    if isinstance(answer, PerdureError):
        raise answer
    return answer


def _appended(answers: Sequence[int | PerdureError]) -> RunAppendResults:
    return RunAppendResults(
        results=[Refusal.of(answer) if isinstance(answer, PerdureError) else answer for answer in answers]
    )


def _ended(answers: Sequence[Run | PerdureError]) -> FinishResults:
    return FinishResults(
        results=[
            EndedRun(error=Refusal.of(answer)) if isinstance(answer, PerdureError) else EndedRun(run=answer)
            for answer in answers
        ]
    )


def _runs(batch: FinishResults) -> list[Run | PerdureError]:
    return [item.error.error if item.error is not None else cast(Run, item.run) for item in batch.results]


APPENDED = WireForm(
    RunAppendResults,
    _appended,
    lambda batch: [item.error if isinstance(item, Refusal) else item for item in batch.results],
)
ENDED = WireForm(FinishResults, _ended, _runs)


class Finished(msgspec.Struct, frozen=True):
    """End of an attempt. If its run ended too: the run, its last append, its thread if the state is known."""

    run_id: str
    placed: AppendedEvents | None = None
    run: RunRow | None = None
    thread: ThreadAnswer | None = None
