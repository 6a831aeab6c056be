"""Rows of threads, runs and checkpoints, and their conversion to records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar, get_args

import msgspec

from perdure.assistants.model import AssistantRow
from perdure.checkpoints.rows import CheckpointWithValues, row_to_graph_tuple
from perdure.checkpoints.view import decode_keys, state_values
from perdure.kernel.clock import to_seconds, to_seconds_or_none
from perdure.kernel.codec import decode_json, encode_json, encode_wire
from perdure.outbox.webhooks.urls import mask_target
from perdure.rollouts.model import ENDED, Limits, decode_limits
from perdure.streams.model import CONTROL, NewEvent
from perdure.threads.kwargs import RunReferences, decode_kwargs, whole_kwargs
from perdure.threads.model import TEMPORARY, run_status
from perdure.threads.records import (
    CANCEL_ACTIONS,
    Checkpoint,
    Failure,
    Interrupt,
    PruneStrategy,
    Run,
    RunEnd,
    RunStatus,
    Thread,
)

R = TypeVar("R")

IN_PIECES = ""
"""Body of a state whose values are stored in pieces; no JSON text is empty."""
IN_CHECKPOINT = "{}"
"""Metadata of a state that has its metadata in its graph's checkpoint."""
NOTHING_NEXT = "[]"
"""Next steps of a finished state."""
NOTHING_ASKED = "[]"
"""Interrupts of a state without questions."""


class Created(Generic[R]):
    """Result of a creation: the ids, which an idempotency key keeps, and the record."""

    __slots__ = ("ids", "record")

    def __init__(self, ids: Sequence[Any], record: R) -> None:
        self.ids = ids
        self.record = record

    def __iter__(self) -> Iterator[Any]:
        return iter(self.ids)


# --- threads ----------------------------------------------------------------------------------------------


class ThreadRow(msgspec.Struct):
    """Stored thread."""

    id: str
    status: str
    rest: str
    """Status that the thread has when nothing runs."""
    temporary: int | None
    single: int | None
    """Set if the thread was created for one run."""
    gone_at: int | None
    created_at: int
    updated_at: int
    state_at: int
    checkpoint_id: str | None
    steps: int
    error: str | None
    config: str
    metadata: str

    @property
    def is_gone(self) -> bool:
        """True for a thread that callers no longer see: deleted, or temporary with a failed run."""
        return self.gone_at is not None or (self.temporary == TEMPORARY and self.status == "error")


def new_thread_row(thread_id: str, now: int, *, single: int | None = None, **fields: Any) -> ThreadRow:
    """Build the row of a new thread."""
    return ThreadRow(
        id=thread_id,
        single=single,
        rest="idle",
        gone_at=None,
        created_at=now,
        updated_at=now,
        state_at=now,
        checkpoint_id=None,
        steps=0,
        error=None,
        **fields,
    )


class LifetimeRow(NamedTuple):
    """Lifetime of a thread in microseconds, and how the thread is pruned at its end."""

    thread_id: str
    expires_at: int
    length: int
    strategy: PruneStrategy


class NamespacedId(NamedTuple):
    """ID of a thread or run, with its namespace."""

    ns: int
    id: str


class RunCursor(NamedTuple):
    """Position of a run in the list of all runs."""

    id: str
    start_time: int


# --- runs -------------------------------------------------------------------------------------------------


class RunRow(msgspec.Struct):
    """Run joined with its rollout."""

    id: str
    thread_id: str
    assistant_id: str
    agent: str
    kind: str
    parent: str | None
    rollout_status: str
    outcome: str | None
    metadata: str
    input: str
    strategy: str
    created_at: int
    updated_at: int
    end_time: int | None
    attempts: int
    error: str | None
    temporary: int | None
    on_disconnect: str
    on_completion: str
    webhook: str | None
    gone_at: int | None
    config: str
    resources_id: str | None
    session_id: str | None

    @property
    def status(self) -> RunStatus:
        return run_status(self.rollout_status, self.outcome)

    @property
    def live(self) -> int | None:
        """1 until the run has ended, for the index of live runs."""
        return None if self.rollout_status in ENDED else 1

    @property
    def limits(self) -> Limits:
        return decode_limits(self.config)


class CreatedRun(Created[RunRow]):
    """New run, with its thread, its assistant and its references.

    `first` is the first event of its stream, stored only if the run is claimed in the same transaction.
    """

    __slots__ = ("assistant", "first", "references", "thread")

    def __init__(
        self,
        record: RunRow,
        thread: ThreadRow,
        assistant: AssistantRow,
        references: RunReferences,
        first: NewEvent | None = None,
    ) -> None:
        super().__init__((record.id,), record)
        self.thread = thread
        self.assistant = assistant
        self.references = references
        self.first = first

    def as_claimed(self, rollout: QueueRolloutRow) -> CreatedRun:
        """Return the run as it is after its rollout was claimed."""
        changes = {"rollout_status": rollout.status, "attempts": rollout.attempts}
        run = msgspec.structs.replace(self.record, **changes)
        return CreatedRun(run, self.thread, self.assistant, self.references, self.first)


ROLLOUT_COLUMNS: Final = {
    "kind": "r.kind",
    "parent": "r.parent",
    "rollout_status": "r.status AS rollout_status",
    "outcome": "r.outcome",
    "metadata": "r.metadata",
    "input": "r.input",
    "end_time": "r.end_time",
    "attempts": "r.attempts",
    "config": "r.config",
    "resources_id": "r.resources_id",
}
"""Columns of a run that its rollout has."""


class RunSession(NamedTuple):
    """Session that a run writes to."""

    id: str
    session_id: str | None


class RunSessionRow(NamedTuple):
    """Run with its kind, and the session that it writes to."""

    id: str
    session_id: str | None
    kind: str


class QueueRolloutRow(NamedTuple):
    """Rollout with the columns that the queue returns."""

    id: str
    start_time: int
    end_time: int | None
    mode: str | None
    resources_id: str | None
    status: str
    config: str
    metadata: str
    input: str
    attempts: int
    parent: str | None


class QueueAttemptRow(NamedTuple):
    """Attempt with the columns that the queue returns."""

    rollout_id: str
    sequence_id: int
    id: str
    status: str
    start_time: int
    end_time: int | None
    worker_id: str | None
    last_heartbeat_time: int | None
    metadata: str | None


class LiveRun(NamedTuple):
    """Run of a thread that has not ended."""

    thread_id: str
    id: str


class RolloutStatus(NamedTuple):
    """Status of a run's rollout."""

    id: str
    status: str
    outcome: str | None
    attempts: int


class StartTime(NamedTuple):
    """Start of the first attempt of a run."""

    rollout_id: str
    start_time: int


class Count(NamedTuple):
    """Number of rows under a name."""

    name: str
    total: int


class RunLineHolder(NamedTuple):
    """Run and attempt that hold the line of a thread."""

    line: str
    holder: str | None
    holder_attempt: str | None


class LatestAttempt(NamedTuple):
    """Latest attempt of a run."""

    rollout_id: str
    id: str
    status: str
    rollout_status: str
    outcome: str | None


class LeasedAttempt(msgspec.Struct):
    """Attempt whose lease may be renewed."""

    rollout_id: str
    sequence_id: int
    id: str
    status: str
    last_heartbeat_time: int | None


class RunStepRow(NamedTuple):
    """Result of a step of a run, as JSON."""

    run_id: str
    name: str
    attempt: int
    body: str
    saved_by: str | None = None
    """Run whose attempt saved the result: `run_id`, or a run that resumes it."""
    seq: int | None = None
    """Number of events in that run's stream after all events before the step; None if unknown."""
    within: str | None = None
    """Name of the step that contains this step."""


# --- states -----------------------------------------------------------------------------------------------


class StateRow(msgspec.Struct):
    """Stored state of a thread; its bodies are JSON."""

    thread_id: str
    id: str
    position: int
    step: int
    parent_id: str | None
    run_id: str | None
    attempt: int | None
    created_at: int
    next: str
    interrupts: str
    metadata: str
    body: str
    state: bytes | None
    output: str | None
    """Part of the body that a run returns: a list of names or one name, as JSON. None means all."""

    @property
    def is_unfinished(self) -> bool:
        """True if the state has next steps."""
        return self.next != NOTHING_NEXT


ORIGIN: Final = "origin"
"""Metadata key of an interrupted state: the run whose steps are reused on resume."""
_ORIGIN_KEY: Final = encode_json(ORIGIN) + ":"


def get_origin(state: StateRow) -> str | None:
    """Return the run whose steps are reused when a state is resumed."""
    if _ORIGIN_KEY not in state.metadata:
        return None
    origin = decode_json(state.metadata).get(ORIGIN)
    return origin if isinstance(origin, str) else None


class NextOf(NamedTuple):
    """Next steps and interrupts of a state."""

    thread_id: str
    id: str
    next: str
    interrupts: str


class StateChange(NamedTuple):
    """Change that a graph makes to a stored state."""

    thread_id: str
    id: str
    next: str
    interrupts: str
    body: str


ThreadAnswer = tuple[ThreadRow, StateRow | None]
"""Thread, and its state if there is one and it was requested."""


# --- from rows to records ---------------------------------------------------------------------------------


class RunLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of a run, as stored in its rollout's config."""

    timeout_seconds: float
    """Timeout of the watchdog; a little later than the worker's own."""
    unresponsive_seconds: float
    max_attempts: int
    retry_condition: tuple[str, ...]
    run_timeout: float
    """The run's own timeout. 0 means that the worker that claims the run decides."""
    free_lapses: int = 0
    retry_after: float | None = None
    server_timeout: float | None = None
    """Timeout that the server sets for runs without their own."""


_limits = msgspec.json.Decoder(RunLimits)


def run_limits(row: RunRow) -> RunLimits:
    return _limits.decode(row.config)


def decode_failure(text: str | None) -> Failure | None:
    return None if text is None else Failure(**decode_json(text))


def failure_text(failure: Failure | None) -> str | None:
    if failure is None:
        return None
    return encode_json({"error": failure.error, "message": failure.message}, what="error")


def row_to_run(row: RunRow) -> Run:
    """Build the record of a run."""
    ended = to_seconds_or_none(row.end_time)
    updated = to_seconds(max(row.updated_at, row.end_time or 0))
    return Run(
        run_id=row.id,
        thread_id=row.thread_id,
        assistant_id=row.assistant_id,
        agent=row.agent,
        status=row.status,
        metadata=decode_json(row.metadata) or {},
        kwargs=decode_kwargs(row.input),
        multitask_strategy=row.strategy,  # type: ignore[arg-type]
        created_at=to_seconds(row.created_at),
        updated_at=updated,
        ended_at=ended,
        attempt=row.attempts,
        error=decode_failure(row.error),
        temporary=row.temporary is not None,
        kind=row.kind,  # type: ignore[arg-type]
        parent=row.parent,
        on_disconnect=row.on_disconnect,  # type: ignore[arg-type]
        webhook=None if row.webhook is None else mask_target(row.webhook),
        session_id=row.session_id,
    )


def row_to_thread(row: ThreadRow, checkpoint: StateRow | None) -> Thread:
    """Build the record of a thread, with the values of its checkpoint if they were read."""
    return Thread(
        thread_id=row.id,
        status=row.status,  # type: ignore[arg-type]
        metadata=decode_json(row.metadata),
        config=decode_json(row.config),
        values=None if checkpoint is None else decode_json(checkpoint.body),
        interrupts=[] if checkpoint is None else _interrupts(checkpoint.interrupts),
        error=decode_failure(row.error),
        created_at=to_seconds(row.created_at),
        updated_at=to_seconds(row.updated_at),
        state_updated_at=to_seconds(row.state_at),
        checkpoint_id=row.checkpoint_id,
    )


def returned_values(values: Any, checkpoint: StateRow | None) -> Any:
    """Return the part of a thread's values that its runs return."""
    if checkpoint is None or checkpoint.output is None or not isinstance(values, dict):
        return values
    keys = decode_keys(checkpoint.output)
    return values.get(keys) if isinstance(keys, str) else {key: values[key] for key in keys if key in values}


def row_to_run_end(run: RunRow, answer: ThreadAnswer | None) -> RunEnd:
    """Build the record of an ended run, with the values of a state of its thread."""
    if answer is None:
        return RunEnd(run=row_to_run(run))
    thread_row, state = answer
    thread = row_to_thread(thread_row, state)
    values = returned_values(thread.values, state)
    return RunEnd(run=row_to_run(run), values=values, interrupts=thread.interrupts)


def _interrupts(text: str) -> list[Interrupt]:
    return [Interrupt(**interrupt) for interrupt in decode_json(text)]


def is_graph(state: bytes | None) -> bool:
    """Return whether a graph stored the state. Its marker is an empty `state`, not None."""
    return state is not None and len(state) == 0


def row_to_checkpoint(row: StateRow) -> Checkpoint:
    """Build the record of a checkpoint."""
    return Checkpoint(
        thread_id=row.thread_id,
        checkpoint_id=row.id,
        parent_id=row.parent_id,
        run_id=row.run_id,
        attempt=row.attempt,
        step=row.step,
        values=decode_json(row.body) if row.body else None,
        next=decode_json(row.next),
        interrupts=_interrupts(row.interrupts),
        metadata=decode_json(row.metadata),
        state=bytes(row.state) if row.state else None,
        graph=is_graph(row.state),
        created_at=to_seconds(row.created_at),
    )


def row_to_outline(row: StateRow) -> Checkpoint:
    """Build the record of a checkpoint without its values."""
    return msgspec.structs.replace(row_to_checkpoint(row), values=None, state=None)


def values_text(row: CheckpointWithValues) -> str:
    """Encode the values of a state that a graph stores in pieces."""
    return encode_json(state_values(row_to_graph_tuple(row)), what="values", nan="keep")


def decode_metadata(text: str) -> dict[str, Any]:
    """Decode stored metadata."""
    metadata: dict[str, Any] = decode_json(text)
    return metadata


# --- events and webhooks at the end of a run --------------------------------------------------------------


CONTROLS: Final = {action: NewEvent(CONTROL, encode_json({"message": action})) for action in CANCEL_ACTIONS}
"""Event of a cancelled run, by action. Its worker receives the same message."""


END_EVENTS: Final = {
    status: NewEvent("end", encode_json({"status": status})) for status in get_args(RunStatus)
}
"""Last event of a run, by status."""


def webhook_body(run: RunRow, values: str | None, started: int | None, now: int) -> str:
    """Build the webhook body for an ended run. Stored JSON is inserted without decoding."""
    payload: dict[str, Any] = {
        "run_id": run.id,
        "thread_id": run.thread_id,
        "assistant_id": run.assistant_id,
        "agent": run.agent,
        "status": run.status,
        "metadata": msgspec.Raw(run.metadata.encode()),
        "kwargs": whole_kwargs(run.input),
        "multitask_strategy": run.strategy,
        "created_at": to_seconds(run.created_at),
        "updated_at": to_seconds(run.updated_at),
        "attempt": run.attempts,
        "run_started_at": to_seconds_or_none(started),
        "run_ended_at": to_seconds(now),
        "values": None if values is None else msgspec.Raw(values.encode()),
    }
    if run.error is not None:
        payload["error"] = msgspec.Raw(run.error.encode())
    return encode_wire({"url": run.webhook, "payload": payload}).decode()
