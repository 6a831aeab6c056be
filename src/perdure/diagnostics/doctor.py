"""Checks of a database and of its server. Results contain no paths and no secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from perdure.kernel.clock import human_duration
from perdure.kernel.record import Record
from perdure.kernel.signals.port import CLUSTER_REASON

if TYPE_CHECKING:
    from perdure.diagnostics.model import LiveWorkers

State = Literal["ok", "note", "failed"]
LOW_SPACE = 512 << 20
NO_SPACE = 32 << 20
SKEW_SECONDS = 2.0
LONG_SECONDS = 300.0
"""A rollout that is ready for longer is worth a note."""


class DoctorCheck(Record):
    """The result of one check."""

    name: str
    state: State
    found: str


class Findings(Record, kw_only=True):
    """Results of the checks; `ok` unless a check failed."""

    ok: bool
    items: list[DoctorCheck]


def build_findings(checks: Sequence[DoctorCheck]) -> Findings:
    return Findings(ok=all(check.state != "failed" for check in checks), items=list(checks))


def check_space(free: int) -> DoctorCheck:
    """Check the space on the disk of the database."""
    text = f"{free / (1 << 30):.1f} GiB free on the disk of the database"
    if free < NO_SPACE:
        return DoctorCheck("disk", "failed", text)
    return DoctorCheck("disk", "note" if free < LOW_SPACE else "ok", text)


def check_skew(before: float, micros: int, after: float) -> DoctorCheck:
    """Check that the database's clock, read between two moments, agrees with this machine's."""
    skew = micros / 1e6 - (before + after) / 2
    text = f"the database's clock is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    return DoctorCheck("clock", "ok" if abs(skew) < SKEW_SECONDS + (after - before) else "note", text)


def check_health(health: Mapping[str, Any], counts: str) -> DoctorCheck:
    """Check that the database responds and its indexes are built."""
    if health.get("status") != "ok":
        return DoctorCheck("database", "failed", f"{health.get('status')}: {health.get('reason')}")
    building = health.get("indexes_being_built")
    if building:
        return DoctorCheck("database", "note", f"opened; building indexes: {', '.join(building)}; {counts}")
    return DoctorCheck("database", "ok", f"opened, schema up to date; {counts}")


def check_redis(health: Mapping[str, Any]) -> DoctorCheck:
    """Check that Redis responds, if it is used."""
    state = health.get("redis")
    if state is None:
        return DoctorCheck("Redis", "ok", "not used")
    if state == "ok":
        return DoctorCheck("Redis", "ok", "it answers")
    if health.get("redis_reason") == CLUSTER_REASON:
        return DoctorCheck("Redis", "failed", f"{CLUSTER_REASON}; the database is polled instead")
    return DoctorCheck("Redis", "note", "it does not answer; the database is polled instead")


def check_workers(workers: LiveWorkers, ready: int, oldest: float) -> DoctorCheck:
    """Check that a worker claims ready rollouts."""
    text = f"{workers.alive} alive, {workers.available} of {workers.max} slots free"
    if not ready:
        return DoctorCheck("workers", "ok", f"{text}; nothing waits for one")
    waits = f"{ready} ready, the oldest for {human_duration(oldest)}"
    if not workers.alive:
        return DoctorCheck(
            "workers", "failed", f"none is alive, and {waits}; start one with `perdure worker`"
        )
    return DoctorCheck("workers", "note" if oldest > LONG_SECONDS else "ok", f"{text}; {waits}")


def check_agents(not_loaded: Mapping[str, str]) -> list[DoctorCheck]:
    """List the agents of the server that could not be loaded."""
    text = "; ".join(f"{name} could not be loaded: {reason}" for name, reason in sorted(not_loaded.items()))
    return [DoctorCheck("agents", "failed", text)] if text else []


def check_queues(paused: Sequence[str], drained: Sequence[str]) -> DoctorCheck:
    """Check for paused queues and drained workers."""
    notes = [f"paused: {', '.join(paused)}"] if paused else []
    notes += [f"drained workers: {', '.join(drained)}"] if drained else []
    return DoctorCheck(
        "holds", "note" if notes else "ok", "; ".join(notes) or "no queue is paused, nobody drained"
    )


def check_outbox(pending: int, dead: int) -> DoctorCheck:
    """Check for dead deliveries."""
    text = f"{pending} pending, {dead} dead"
    return DoctorCheck(
        "outbox", "note" if dead else "ok", text + ("; retry them in the outbox" if dead else "")
    )
