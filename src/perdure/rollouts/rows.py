"""Rows of rollouts, attempts, workers and resources, as they are read and written."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perdure.kernel.storage.rows import projection
from perdure.rollouts.model import ENDED, LIVE, UNKNOWN, Limits, compute_deadline, decode_limits

# --- rollouts ---------------------------------------------------------------------------------------------


class RolloutRecordRow(NamedTuple):
    """The fields of a rollout in its record."""

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
    parent: str | None = None


_rollout_view = projection(RolloutRecordRow)


class NewRolloutRow(msgspec.Struct):
    """A rollout to insert."""

    id: str
    kind: str
    queue: str
    agent: str | None
    status: str
    outcome: str | None
    priority: int
    position: int
    ready: int | None
    due_at: int | None
    behind: int | None
    line: str | None
    parent: str | None
    queued_as: str | None
    attempts: int
    mode: str | None
    resources_id: str | None
    start_time: int
    end_time: int | None
    idempotency_key: str | None
    config: str
    metadata: str
    input: str
    trace_id: str | None = None

    @property
    def view(self) -> RolloutRecordRow:
        return _rollout_view(self)


class RolloutRow(msgspec.Struct):
    """The fields of a rollout that the rules read and write."""

    id: str
    kind: str
    queue: str
    agent: str | None
    status: str
    outcome: str | None
    priority: int
    position: int
    ready: int | None
    due_at: int | None
    behind: int | None
    line: str | None
    parent: str | None
    queued_as: str | None
    """Status before the rollout was claimed, or completed with others."""
    attempts: int
    end_time: int | None
    config: str
    start_time: int
    head: str | None
    """The next rollout in its line, if the line was locked before."""
    was_status: str = ""
    dirty: bool = False

    def __post_init__(self) -> None:
        self.was_status = self.status

    @property
    def limits(self) -> Limits:
        return decode_limits(self.config)

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED and self.status != self.was_status


class RolloutBodies(NamedTuple):
    """The fields of a rollout that a caller edits."""

    id: str
    mode: str | None
    resources_id: str | None
    config: str
    metadata: str
    input: str


class KeyedRolloutRow(NamedTuple):
    """A rollout with its idempotency key."""

    idempotency_key: str
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

    @property
    def view(self) -> RolloutRecordRow:
        return _rollout_view(self)


class ClaimedRow(NamedTuple):
    """A rollout that was claimed."""

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
    kind: str
    queue: str
    priority: int
    position: int
    line: str | None
    parent: str | None
    queued_as: str
    more: bool | None
    """Whether more are ready; None if that follows from the number of claimed rollouts."""

    @property
    def view(self) -> RolloutRecordRow:
        return _rollout_view(self)


class EndedRolloutRow(NamedTuple):
    """A rollout that has ended, and its kind."""

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
    kind: str
    parent: str | None

    @property
    def view(self) -> RolloutRecordRow:
        return _rollout_view(self)


class ReturnedRow(NamedTuple):
    """A rollout whose claim is reverted."""

    id: str
    status: str
    ready: int
    attempts: int
    was_status: str
    was_attempts: int


class DueRolloutRow(NamedTuple):
    """A delayed rollout in a line. Its time has come."""

    id: str
    line: str
    queue: str
    agent: str | None


class PromotedRow(NamedTuple):
    """A rollout that is ready now."""

    queue: str
    agent: str | None


class RolloutCountRow(NamedTuple):
    """Change of a count of rollouts."""

    kind: str
    status: str
    shard: int
    total: int


class TotalRow(NamedTuple):
    """A shard of a total, or its change."""

    name: str
    shard: int
    total: int


class RolloutStatusCount(NamedTuple):
    """Number of rollouts with a status."""

    status: str
    total: int


# --- attempts and lines -----------------------------------------------------------------------------------


class AttemptRecordRow(NamedTuple):
    """The fields of an attempt in its record."""

    rollout_id: str
    sequence_id: int
    id: str
    status: str
    start_time: int
    end_time: int | None
    worker_id: str | None
    last_heartbeat_time: int | None
    metadata: str | None


_attempt_view = projection(AttemptRecordRow)


class ClaimedRollout(NamedTuple):
    """A rollout and its new attempt."""

    rollout: RolloutRecordRow
    attempt: AttemptRecordRow

    @property
    def name(self) -> str:
        """Name of the attempt in the audit."""
        return self.rollout.id + "/" + self.attempt.id


class AttemptRow(msgspec.Struct):
    """A row of attempts; `born` is the time when its rollout was created."""

    rollout_id: str
    sequence_id: int
    id: str
    status: str
    start_time: int
    end_time: int | None
    worker_id: str | None
    last_heartbeat_time: int | None
    metadata: str | None
    check_at: int | None
    reason: str | None
    charged: int
    kind: str
    born: int
    joined: int | None
    """1 if spans of a framework have joined the worker's spans: a model call in both counts once."""
    was_status: str = ""
    dirty: bool = False

    def __post_init__(self) -> None:
        self.was_status = self.status

    @property
    def view(self) -> AttemptRecordRow:
        return _attempt_view(self)

    @property
    def has_ended(self) -> bool:
        return self.status not in LIVE and self.was_status in LIVE

    @property
    def name(self) -> str:
        """Name of the attempt in the audit."""
        return self.rollout_id + "/" + self.id

    def beat(self, time: int | None, limits: Limits) -> None:
        """Set the heartbeat; the watchdog's time changes only if the attempt is overdue before it."""
        self.last_heartbeat_time = time
        deadline = compute_deadline(limits, self.start_time, time)
        if self.check_at is not None and deadline is not None and deadline < self.check_at:
            self.check_at, self.dirty = deadline, True

    def watch(self, limits: Limits) -> None:
        """Set when the watchdog checks this attempt next."""
        live = self.status in LIVE
        self.check_at = compute_deadline(limits, self.start_time, self.last_heartbeat_time) if live else None
        self.dirty = True


class HeartbeatRow(NamedTuple):
    """The heartbeat of an attempt."""

    rollout_id: str
    sequence_id: int
    last_heartbeat_time: int


class LineRow(NamedTuple):
    """A line, the rollout that holds it, and that rollout's attempt."""

    line: str
    holder: str | None = None
    holder_attempt: str | None = None
    release_by: int | None = None


class LineHolder(NamedTuple):
    """A line and the rollout that holds it."""

    line: str
    holder: str | None


class LineHead(NamedTuple):
    """A line, and the next rollout in it."""

    line: str
    head: str | None


# --- workers and resources --------------------------------------------------------------------------------


class WorkerRow(msgspec.Struct):
    """A row of workers."""

    id: str
    status: str
    last_heartbeat_time: int | None
    last_dequeue_time: int | None
    last_busy_time: int | None
    last_idle_time: int | None
    current_rollout_id: str | None
    current_attempt_id: str | None
    heartbeat_stats: str | None
    held: int | None
    """Number of runs that the worker executes. Tasks are not counted: a worker shows only its last task."""
    stopped_at: int | None
    """When it signed off or was found dead; None while it may claim."""
    process: str | None
    """The process of the worker, if that process has the database open itself."""


def new_worker(worker_id: str) -> WorkerRow:
    """Build the row of a worker without any data yet."""
    return WorkerRow(
        id=worker_id,
        status=UNKNOWN,
        last_heartbeat_time=None,
        last_dequeue_time=None,
        last_busy_time=None,
        last_idle_time=None,
        current_rollout_id=None,
        current_attempt_id=None,
        heartbeat_stats=None,
        held=None,
        stopped_at=None,
        process=None,
    )


class HeldAttemptRow(NamedTuple):
    """An attempt that a worker executes."""

    worker_id: str
    rollout_id: str
    attempt_id: str
    kind: str
    start_time: int


class WorkerKey(NamedTuple):
    """A worker in its namespace."""

    ns: int
    id: str


class ResourcesRow(NamedTuple):
    """A version of resources."""

    id: str
    version: int
    create_time: int
    update_time: int
    body: str


class ResourcesVersionRow(NamedTuple):
    """A version of resources to insert."""

    id: str
    version: int
    time: int
    body: str


# --- counts of many namespaces ----------------------------------------------------------------------------


class NamespaceCount(NamedTuple):
    """Number of rollouts or workers with a status in a namespace."""

    ns: int
    status: str
    total: int


class ReadyCount(NamedTuple):
    """Number of ready rollouts of a queue, and since when the oldest is ready."""

    ns: int
    queue: str
    total: int
    oldest: int | None


class QueueCount(NamedTuple):
    """Number of waiting rollouts of a queue."""

    ns: int
    queue: str
    total: int
