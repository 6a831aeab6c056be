"""What is known of something whose standing is asked for. Times are microseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.kernel.clock import to_seconds
from perdure.rollouts.model import Limits
from perdure.threads.records import Failure, Interrupt


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
    """The line in which something waits: who holds it, and how many are in between."""

    holder: str | None
    holder_status: str | None
    release_by: int | None
    ahead: int


class WorkerFacts(msgspec.Struct, frozen=True):
    """Who works on a queue: those that were heard of lately, and the last of the others."""

    alive: int = 0
    places: int | None = None
    free: int | None = None
    last_id: str | None = None
    last_heard: int | None = None


class AuditMatch(msgspec.Struct, frozen=True):
    """What somebody did at the moment in question; `instead` is the run that the other made way for."""

    actor: str | None = None
    action: str | None = None
    instead: str | None = None
    strategy: str | None = None


class RunFacts(msgspec.Struct, frozen=True):
    """What only runs have."""

    thread_id: str
    agent: str
    strategy: str
    timeout: float
    gone_at: int | None
    temporary: bool
    failure: Failure | None


class RolloutFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout with all that may hold it."""

    id: str
    kind: str
    known: bool
    queue: str
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
    in_line: LineFacts | None = None
    ahead: int = 0
    workers: WorkerFacts = WorkerFacts()
    deed: AuditMatch = AuditMatch()

    @property
    def tries(self) -> int:
        """How many attempts have counted."""
        return self.attempts - self.uncharged


class ThreadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A thread, the run it is busy with, and what its state asks for."""

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
    deed: AuditMatch = AuditMatch()


def shown(facts: RolloutFacts) -> dict[str, Any]:
    """The facts of a rollout for programs: flat, times in epoch seconds, and without what is not known."""
    run, latest, line, workers, deed = facts.run, facts.latest, facts.in_line, facts.workers, facts.deed
    known: dict[str, Any] = {
        "queue": facts.queue,
        "created_at": _seconds(facts.start_time),
        "ended_at": _seconds(facts.end_time),
        "not_before": _seconds(facts.due_at),
        "attempts": facts.attempts,
        "uncharged": facts.uncharged or None,
        "max_attempts": facts.limits.max_attempts,
        "ahead": facts.ahead if facts.ready is not None else None,
    }
    if run is not None:
        known |= {"thread_id": run.thread_id, "agent": run.agent, "multitask_strategy": run.strategy}
        known |= {"deleted_at": _seconds(run.gone_at), "error": _failure(run.failure)}
    if latest is not None:
        known |= {"attempt_id": latest.attempt_id, "attempt_status": latest.status, "reason": latest.reason}
        known |= {"worker_id": latest.worker_id, "started_at": _seconds(latest.start_time)}
        known |= {"last_heard_at": _seconds(latest.heard), "last_error": _failure(latest.failure)}
    if line is not None:
        known |= {"behind": line.holder, "place": line.ahead + 1, "release_by": _seconds(line.release_by)}
    if facts.ready is not None or facts.due_at is not None:
        known |= {"workers_alive": workers.alive, "places": workers.places, "places_free": workers.free}
        known |= {"last_worker_id": workers.last_id, "last_worker_heard_at": _seconds(workers.last_heard)}
    known |= {"actor": deed.actor, "action": deed.action, "made_way_for": deed.instead}
    return _without_none(known)


def shown_thread(facts: ThreadFacts) -> dict[str, Any]:
    """The same of a thread, with what is known of the run that it is busy with."""
    known = {
        "last_run_id": facts.last_run,
        "last_run_status": facts.last_status,
        "deleted_at": _seconds(facts.gone_at),
        "error": _failure(facts.failure),
        "live_runs": facts.live,
        "busy_with": None if facts.busy is None else facts.busy.id,
        "interrupts": [msgspec.to_builtins(each) for each in facts.interrupts] or None,
        "next": list(facts.next) or None,
        "actor": facts.deed.actor,
        "run": None if facts.busy is None else shown(facts.busy),
    }
    return _without_none(known)


def _seconds(time: int | None) -> float | None:
    return None if time is None else to_seconds(time)


def _failure(failure: Failure | None) -> dict[str, str] | None:
    return None if failure is None else {"error": failure.error, "message": failure.message}


def _without_none(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if value is not None}
