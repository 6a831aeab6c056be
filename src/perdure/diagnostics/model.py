"""Facts behind an explanation, and the statistics of queues and workers. Times are microseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from perdure.graph_requests.model import RequestRow
from perdure.kernel.clock import to_seconds
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.record import Record
from perdure.rollouts.model import UNKNOWN, Limits, decode_limits
from perdure.threads.model import AGENTS_QUEUE, RUN, RUN_KINDS
from perdure.threads.operations.queries import QueueStats
from perdure.threads.records import Failure, Interrupt
from perdure.threads.rows import RunRow, ThreadRow, decode_failure, run_limits

WhyKind = Literal[
    "rollout",
    "run",
    "phase",
    "request",
    "thread",
    "schedule",
    "workflow",
    "approval",
    "workflow_run",
    "attempt",
    "assistant",
    "session",
    "messaging_session",
    "trace",
    "span",
    "memory_node",
    "memory_event",
    "memory_grip",
    "worker",
    "effect",
    "resources",
    "job",
    "token",
]


class Why(Record, kw_only=True):
    """Why something waits or how it ended: a sentence, its rule and its facts."""

    id: str
    kind: WhyKind
    status: str
    rule: str
    """A short code that stays the same when the sentence changes."""
    sentence: str
    facts: dict[str, Any]


class OpenApprovals(Record, kw_only=True):
    """Number of a namespace's open approvals, and the age of the oldest."""

    pending: int
    oldest_age_seconds: float


# --- rows -------------------------------------------------------------------------------------------------


class DiagnosedRolloutRow(NamedTuple):
    """A rollout: its status and its place in a queue or line; `position` is the time of its last queuing."""

    id: str
    kind: str
    queue: str
    agent: str | None
    status: str
    outcome: str | None
    priority: int
    ready: int | None
    due_at: int | None
    behind: int | None
    line: str | None
    attempts: int
    start_time: int
    end_time: int | None
    config: str
    position: int


class DiagnosedAttemptRow(NamedTuple):
    """An attempt of a rollout: its worker, its times and its end."""

    sequence_id: int
    id: str
    status: str
    start_time: int
    end_time: int | None
    worker_id: str | None
    last_heartbeat_time: int | None
    check_at: int | None
    reason: str | None
    metadata: str | None
    charged: int


class HeldLineRow(NamedTuple):
    """The run that holds a line, and the latest time of its release."""

    holder: str | None
    release_by: int | None


class DiagnosedWorkerRow(NamedTuple):
    """A worker, its last sign of life, and its last heartbeat as JSON."""

    id: str
    status: str
    heartbeat_stats: str | None
    last_heartbeat_time: int | None
    last_dequeue_time: int | None
    last_busy_time: int | None
    last_idle_time: int | None
    stopped_at: int | None


class HeldCountRow(NamedTuple):
    """Number of rollouts that a worker executes."""

    worker_id: str
    held: int


class DiagnosedAuditRow(msgspec.Struct):
    """An entry of the audit: `object` has ids, separated by commas, and `count` is the number of ids.

    Its id is its time.
    """

    id: int
    actor: str
    action: str
    object: str
    count: int


class ReplacementRow(NamedTuple):
    """The run that replaced a cancelled run."""

    id: str
    strategy: str


class OpenApprovalsRow(NamedTuple):
    """The open approvals of a namespace, and when the oldest was requested."""

    ns: int
    pending: int
    oldest: int


class AskedRow(NamedTuple):
    """Interrupts and next nodes of a state, as JSON."""

    interrupts: str
    next: str


# --- facts ------------------------------------------------------------------------------------------------


class WorkerRows(NamedTuple):
    """The workers of a namespace, and the number of rollouts of a kind that each worker executes."""

    workers: Sequence[DiagnosedWorkerRow] = ()
    held: Sequence[HeldCountRow] = ()


class RolloutRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a rollout that matter in its status."""

    row: DiagnosedRolloutRow
    run: RunRow | None
    request: RequestRow | None = None
    attempt: DiagnosedAttemptRow | None
    uncharged: int
    line: LineFacts | None = None
    ahead: int = 0
    paused: int | None = None
    workers: WorkerRows = WorkerRows()
    audit: AuditMatch | None = None


class ThreadRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a thread that matter in its status."""

    row: ThreadRow
    busy: RolloutRows | None
    live: int
    last_run: RunRow | None
    asked: AskedRow | None
    audit: AuditMatch


# --- facts ------------------------------------------------------------------------------------------------


class AttemptFacts(msgspec.Struct, frozen=True):
    """The latest attempt."""

    number: int
    attempt_id: str
    status: str
    start_time: int
    end_time: int | None
    worker_id: str | None
    heard: int | None
    check_at: int | None
    reason: str | None
    failure: Failure | None


class LineFacts(msgspec.Struct, frozen=True):
    """The line in which a run waits: its holder, and the number of runs in between."""

    holder: str | None
    holder_status: str | None
    release_by: int | None
    ahead: int


class WorkerFacts(msgspec.Struct, frozen=True):
    """The live workers of a queue that have the agent; without one, the worker with the last sign of life."""

    alive: int = 0
    places: int | None = None
    free: int | None = None
    last_id: str | None = None
    last_heard: int | None = None
    stopped: bool = False
    """True if the worker `last_id` has signed off."""
    other_agents: tuple[str, ...] | None = None
    """The agents of the queue's live workers, if no live worker has the agent."""


class AuditMatch(msgspec.Struct, frozen=True):
    """The audit entry of a change; `instead` is the run that replaced a cancelled run."""

    actor: str | None = None
    action: str | None = None
    instead: str | None = None
    strategy: str | None = None


class RunFacts(msgspec.Struct, frozen=True):
    """Facts that only runs have."""

    thread_id: str
    agent: str
    strategy: str
    timeout: float | None
    gone_at: int | None
    temporary: bool
    failure: Failure | None


class RequestFacts(msgspec.Struct, frozen=True):
    """Facts that only requests for graphs have."""

    agent: str
    thread_id: str
    expires_at: int


class RolloutFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout with everything that may keep it waiting."""

    id: str
    kind: str
    known: bool
    queue: str
    agent: str | None = None
    status: str
    outcome: str | None
    ready: int | None
    due_at: int | None
    behind: int | None
    line: str | None
    start_time: int
    end_time: int | None
    limits: Limits
    attempts: int = 0
    uncharged: int = 0
    latest: AttemptFacts | None = None
    run: RunFacts | None = None
    request: RequestFacts | None = None
    in_line: LineFacts | None = None
    ahead: int = 0
    paused: int | None = None
    """Start of the pause of its queue."""
    workers: WorkerFacts = WorkerFacts()
    audit: AuditMatch = AuditMatch()

    @property
    def tries(self) -> int:
        """The number of attempts that count against the limit."""
        return self.attempts - self.uncharged


class ThreadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A thread, its current run, and the interrupts of its state."""

    id: str
    status: str
    gone_at: int | None
    failure: Failure | None
    busy: RolloutFacts | None = None
    live: int = 0
    last_run: str | None = None
    last_status: str | None = None
    last_end: int | None = None
    interrupts: Sequence[Interrupt] = ()
    next: Sequence[str] = ()
    audit: AuditMatch = AuditMatch()


def shown(facts: RolloutFacts) -> dict[str, Any]:
    """Return the facts of a rollout for programs: flat, times in epoch seconds, without unknown values."""
    run, latest, line, workers, match = facts.run, facts.latest, facts.in_line, facts.workers, facts.audit
    values: dict[str, Any] = {
        "queue": facts.queue,
        "created_at": _to_seconds(facts.start_time),
        "ended_at": _to_seconds(facts.end_time),
        "not_before": _to_seconds(facts.due_at),
        "attempts": facts.attempts,
        "uncharged": facts.uncharged or None,
        "max_attempts": facts.limits.max_attempts,
        "ahead": facts.ahead if facts.ready is not None else None,
    }
    if run is not None:
        values |= {"thread_id": run.thread_id, "agent": run.agent, "multitask_strategy": run.strategy}
        values |= {"deleted_at": _to_seconds(run.gone_at), "error": _dump_failure(run.failure)}
    if facts.request is not None:
        values |= {"thread_id": facts.request.thread_id, "agent": facts.request.agent}
        values |= {"expires_at": _to_seconds(facts.request.expires_at)}
    if latest is not None:
        values |= {"attempt_id": latest.attempt_id, "attempt_status": latest.status, "reason": latest.reason}
        values |= {"worker_id": latest.worker_id, "started_at": _to_seconds(latest.start_time)}
        values |= {"last_heard_at": _to_seconds(latest.heard), "last_error": _dump_failure(latest.failure)}
    if line is not None:
        values |= {"behind": line.holder, "place": line.ahead + 1, "release_by": _to_seconds(line.release_by)}
    if facts.ready is not None or facts.due_at is not None:
        values |= {"workers_alive": workers.alive, "places": workers.places, "places_free": workers.free}
        values |= {"last_worker_id": workers.last_id, "last_worker_heard_at": _to_seconds(workers.last_heard)}
        values |= {"agents_alive": None if workers.other_agents is None else list(workers.other_agents)}
    values |= {"actor": match.actor, "action": match.action, "made_way_for": match.instead}
    return _drop_none(values)


def shown_thread(facts: ThreadFacts) -> dict[str, Any]:
    """Return the facts of a thread and its current run, for programs."""
    values = {
        "last_run_id": facts.last_run,
        "last_run_status": facts.last_status,
        "deleted_at": _to_seconds(facts.gone_at),
        "error": _dump_failure(facts.failure),
        "live_runs": facts.live,
        "busy_with": None if facts.busy is None else facts.busy.id,
        "interrupts": [msgspec.to_builtins(interrupt) for interrupt in facts.interrupts] or None,
        "next": list(facts.next) or None,
        "actor": facts.audit.actor,
        "run": None if facts.busy is None else shown(facts.busy),
    }
    return _drop_none(values)


def _to_seconds(time: int | None) -> float | None:
    return None if time is None else to_seconds(time)


def _dump_failure(failure: Failure | None) -> dict[str, str] | None:
    return None if failure is None else {"error": failure.error, "message": failure.message}


def _drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def build_facts(rows: RolloutRows, *, known: bool, since: int) -> RolloutFacts:
    """Build the facts of a rollout. `known` is true for a known kind; workers are alive since `since`."""
    row, run = rows.row, rows.run
    return RolloutFacts(
        id=row.id,
        kind=row.kind,
        known=known,
        queue=row.queue,
        agent=row.agent or (None if run is None else run.agent),
        status=row.status,
        outcome=row.outcome,
        ready=row.ready,
        due_at=row.due_at,
        behind=row.behind,
        line=row.line,
        start_time=row.start_time,
        end_time=row.end_time,
        limits=decode_limits(row.config),
        attempts=row.attempts,
        uncharged=rows.uncharged,
        latest=None if rows.attempt is None else _build_attempt_facts(rows.attempt),
        run=None if run is None else _run_facts(run),
        request=None if rows.request is None else _build_request_facts(rows.request),
        in_line=rows.line,
        ahead=rows.ahead,
        paused=rows.paused,
        workers=_build_worker_facts(rows.workers, row, since),
        audit=rows.audit or AuditMatch(),
    )


def thread_facts(rows: ThreadRows, busy: RolloutFacts | None) -> ThreadFacts:
    """Build the facts of a thread and its current run."""
    row, run, state = rows.row, rows.last_run, rows.asked
    return ThreadFacts(
        id=row.id,
        status=row.status,
        gone_at=row.gone_at,
        failure=decode_failure(row.error),
        busy=busy,
        live=rows.live,
        last_run=None if run is None else run.id,
        last_status=None if run is None else run.status,
        last_end=None if run is None else run.end_time,
        interrupts=[] if state is None else [Interrupt(**item) for item in decode_json(state.interrupts)],
        next=[] if state is None else decode_json(state.next),
        audit=rows.audit,
    )


def _build_request_facts(row: RequestRow) -> RequestFacts:
    return RequestFacts(row.agent, row.thread_id, row.expires_at)


def _build_attempt_facts(row: DiagnosedAttemptRow) -> AttemptFacts:
    return AttemptFacts(
        number=row.sequence_id,
        attempt_id=row.id,
        status=row.status,
        start_time=row.start_time,
        end_time=row.end_time,
        worker_id=row.worker_id or None,
        heard=row.last_heartbeat_time,
        check_at=row.check_at,
        reason=row.reason,
        failure=_decode_failure_in(row.metadata),
    )


def _decode_failure_in(metadata: str | None) -> Failure | None:
    """Return the failure of a run's attempt; other metadata belongs to the caller."""
    content = None if metadata is None else decode_json(metadata)
    if not isinstance(content, dict) or set(content) != {"error", "message"}:
        return None
    return Failure(error=str(content["error"]), message=str(content["message"]))


def _run_facts(run: RunRow) -> RunFacts:
    limits = run_limits(run)
    return RunFacts(
        thread_id=run.thread_id,
        agent=run.agent,
        strategy=run.strategy,
        timeout=limits.run_timeout or limits.server_timeout,
        gone_at=run.gone_at,
        temporary=run.temporary is not None,
        failure=decode_failure(run.error),
    )


# --- workers and statistics -------------------------------------------------------------------------------


class LiveWorkers(msgspec.Struct, frozen=True):
    """The live workers, and the slots that they have reported."""

    alive: int
    max: int
    active: int
    available: int


class NamespaceStats(NamedTuple):
    """The queue of runs and the workers of a namespace."""

    queue: QueueStats
    workers: LiveWorkers


class _Presence(NamedTuple):
    """A worker: its last sign of life, and the queues, slots and agents that it has reported."""

    id: str
    heard: int
    stopped: bool
    queues: frozenset[str] | None
    slots: int | None
    agents: frozenset[str]

    def serves(self, kind: str, queue: str) -> bool:
        """Return whether the worker claims from a queue. A worker without queues may claim tasks from any."""
        return queue in (self.queues or ()) if kind in RUN_KINDS or self.queues is not None else True


def _build_presence(row: DiagnosedWorkerRow) -> _Presence:
    try:
        stats = None if row.heartbeat_stats is None else decode_json(row.heartbeat_stats)
    except InvalidInput:
        stats = None
    reported = stats if isinstance(stats, dict) else {}
    slots, agents = reported.get("max"), reported.get("agents")
    own = [row.last_heartbeat_time, row.last_dequeue_time, row.last_busy_time]
    # The watchdog wrote this time, so it is not a sign of life of the worker.
    times = own if row.status == UNKNOWN else [*own, row.last_idle_time]
    return _Presence(
        row.id,
        max(time or 0 for time in times),
        row.stopped_at is not None,
        _parse_queues(reported),
        slots if isinstance(slots, int) else None,
        frozenset(map(str, agents)) if isinstance(agents, list) else frozenset(),
    )


def _parse_queues(stats: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the queues that a worker serves; a worker of an earlier release names a single queue."""
    queues, queue = stats.get("queues"), stats.get("queue")
    if isinstance(queues, list):
        return frozenset(map(str, queues))
    return frozenset((queue,)) if isinstance(queue, str) else None


def _filter_alive(workers: Sequence[_Presence], since: int) -> list[_Presence]:
    return [worker for worker in workers if worker.heard >= since and not worker.stopped]


def live_workers(rows: WorkerRows, since: int) -> LiveWorkers:
    """Return the workers that execute runs and had a sign of life since `since`."""
    serving = [worker for worker in map(_build_presence, rows.workers) if worker.serves(RUN, AGENTS_QUEUE)]
    return _count(rows, _filter_alive(serving, since))


def _count(rows: WorkerRows, alive: Sequence[_Presence]) -> LiveWorkers:
    held = {row.worker_id: row.held for row in rows.held}
    slots = sum(worker.slots or 0 for worker in alive)
    active = sum(held.get(worker.id, 0) for worker in alive)
    return LiveWorkers(len(alive), slots, active, max(slots - active, 0))


def _build_worker_facts(rows: WorkerRows, rollout: DiagnosedRolloutRow, since: int) -> WorkerFacts:
    workers = map(_build_presence, rows.workers)
    serving = [worker for worker in workers if worker.serves(rollout.kind, rollout.queue)]
    alive = _filter_alive(serving, since)
    if not alive:
        last = max(serving, key=lambda worker: worker.heard, default=None)
        if last is None:
            return WorkerFacts()
        return WorkerFacts(last_id=last.id, last_heard=last.heard, stopped=last.stopped)
    if rollout.agent is not None:
        others = tuple(sorted(set().union(*(worker.agents for worker in alive))))
        alive = [worker for worker in alive if rollout.agent in worker.agents]
        if not alive:
            return WorkerFacts(other_agents=others)
    if any(worker.slots is None for worker in alive):
        return WorkerFacts(len(alive))
    counted = _count(rows, alive)
    return WorkerFacts(counted.alive, counted.max, counted.available)


def read_pools(health: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the connection pools of this process: to PostgreSQL and to Redis."""
    pools: dict[str, dict[str, int]] = {}
    database = health.get("connections")
    if database is not None:
        pools["database"] = {
            "idle_connections": database["idle"],
            "in_use_connections": database["open"] - database["idle"],
            "max_connections": database["limit"],
        }
    if health.get("redis_connections") is not None:
        pools["redis"] = dict(health["redis_connections"])
    return pools
