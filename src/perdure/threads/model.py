"""The rules of threads and runs. Everything here is pure: no I/O, no clock, no randomness.

A run has no status of its own: it is a function of its rollout's status and outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

from perdure.executions.model import PHASE, WORKFLOWS_QUEUE
from perdure.kernel.machine import Machine
from perdure.kernel.retry import Backoff
from perdure.rollouts.model import (
    CANCELLED,
    FAILED,
    LIVE,
    OUTCOMES,
    PREPARING,
    QUEUED,
    QUEUING,
    REQUEUING,
    ROLLOUT,
    RUNNING,
    SUCCEEDED,
    TIMEOUT,
    UNRESPONSIVE,
)
from perdure.threads.records import CancelAction, Failure, RunStatus, ThreadStatus

RUN: Final = "run"
AGENTS_QUEUE: Final = "agents"
RUN_KINDS: Final = (RUN, PHASE)
"""Kinds of rollouts that workers execute: runs of callers, and phases of workflows."""
QueueName = Literal["agents", "workflows"]
RUN_QUEUES: Final[tuple[QueueName, ...]] = (AGENTS_QUEUE, WORKFLOWS_QUEUE)
"""Queues that workers claim from by default."""

GATHER_SECONDS: Final = 0.005
"""How long, under load, a few creations or ends wait for more to share a transaction."""

TEMPORARY: Final = 1
"""Value of `threads.temporary` for a thread that ends with its run."""
SINGLE: Final = 1
"""Value of `threads.single` for a thread created for one run without `on_completion="keep"`."""
OF_PHASES: Final = 2
"""Value of `threads.temporary` for a thread of phases: no list shows it, and it takes no runs."""

SUCCESS: Final = OUTCOMES[SUCCEEDED]
ERROR: Final = OUTCOMES[FAILED]
INTERRUPT: Final[CancelAction] = "interrupt"
ROLLBACK: Final[CancelAction] = "rollback"

RETRIABLE: Final = "retriable"
PERMANENT: Final = "permanent"
STOPPED: Final = "stopped"

_ENDINGS: Final[Mapping[tuple[str, str], RunStatus]] = {
    (SUCCEEDED, SUCCESS): "success",
    (FAILED, ERROR): "error",
    (FAILED, TIMEOUT): "timeout",
    (FAILED, UNRESPONSIVE): "error",
    (CANCELLED, INTERRUPT): "interrupted",
    (CANCELLED, ROLLBACK): "rollback",
    (CANCELLED, CANCELLED): "interrupted",
}
"""Run status by the status and outcome of the ended rollout."""

_DEFAULTS: Final[Mapping[str, RunStatus]] = {
    QUEUING: "pending",
    REQUEUING: "pending",
    PREPARING: "running",
    RUNNING: "running",
    SUCCEEDED: "success",
    FAILED: "error",
    CANCELLED: "interrupted",
}

LIVE_STATUSES: Final[tuple[RunStatus, ...]] = ("pending", "running")
FAILURES: Final[tuple[RunStatus, ...]] = ("error", "timeout")


def run_statuses() -> Mapping[tuple[str, str], RunStatus]:
    """Return run statuses by the status and outcome of the rollout; "" means no outcome."""
    return {**{(status, ""): name for status, name in _DEFAULTS.items()}, **_ENDINGS}


def run_status(rollout_status: str, outcome: str | None) -> RunStatus:
    """Return a run's status, computed from its rollout."""
    return _ENDINGS.get((rollout_status, outcome or ""), _DEFAULTS[rollout_status])


def _run_machine() -> Machine:
    """Build the state machine of runs: the rollout's transitions, with statuses of runs."""
    statuses: tuple[RunStatus, ...] = get_args(RunStatus)
    ends = [status for status in statuses if status not in LIVE_STATUSES]
    machine = Machine("run", statuses, start={"created": run_status(QUEUING, None)}, final=ends)
    for event in ("claimed", "lapsed, retry", "reported failure, retry"):
        for source in ROLLOUT.sources(event):
            old, new = run_status(source, None), run_status(ROLLOUT.step(source, event), None)
            if old in LIVE_STATUSES and not machine.moves(old, event):
                machine.on(event, [old], new)
    for (ended, outcome), status in _ENDINGS.items():
        machine.on(outcome, LIVE_STATUSES if ended == CANCELLED else [run_status(RUNNING, None)], status)
    return machine


RUN_MACHINE: Final = _run_machine()


def list_rollout_statuses(status: RunStatus) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the rollout statuses, and for an end the outcomes, that a run status stands for."""
    if status in LIVE_STATUSES:
        return tuple(sorted(QUEUED if status == "pending" else LIVE)), ()
    pairs = [pair for pair, name in _ENDINGS.items() if name == status]
    return tuple(sorted({ended for ended, _ in pairs})), tuple(sorted({outcome for _, outcome in pairs}))


def resting_status(ended: RunStatus, *, began: bool, unfinished: bool, before: str) -> ThreadStatus:
    """Return a thread's status after a run has ended and no other run waits.

    `began` is True if the run was ever executed, `unfinished` if its state has next steps. `before` is the
    status that the thread had before the run.
    """
    if ended == "rollback" or (ended == "interrupted" and not began):
        return _STATUS_AT_REST[before]
    if ended in FAILURES:
        return "error"
    return "interrupted" if unfinished or ended == "interrupted" else "idle"


_STATUS_AT_REST: Final[Mapping[str, ThreadStatus]] = {
    "idle": "idle",
    "interrupted": "interrupted",
    "error": "error",
    "busy": "idle",
}


EXCEEDED: Final = "ExceededMaxAttempts"


def exceeded(run_id: str, max_attempts: int, cause: Failure | None) -> Failure:
    """Build the failure of a run whose last allowed attempt failed with a retriable error."""
    last = f" The last attempt: {cause.error}: {cause.message}" if cause is not None else ""
    return Failure(
        error=EXCEEDED,
        message=(
            f"Run {run_id} exceeded max attempts ({max_attempts})."
            " This may happen if an agent blocks its event loop, so that its heartbeat stops or its"
            " connections time out: use async I/O instead of blocking I/O in the agent, or set"
            f" BG_JOB_ISOLATED_LOOPS=true.{last}"
        ),
    )


RETRY_BACKOFF: Final = Backoff(0.5, 60.0)
"""Delay between a failed attempt and the next one."""

SILENT: Final = Failure(error="WorkerLost", message="the worker that executed it fell silent")


def took_too_long(seconds: float | None, source: str | None = None) -> Failure:
    """Build the failure of a run that exceeded a time limit. `source` names the setting of the limit."""
    limit = f"the run took longer than {seconds:g} s" if seconds else "timeout"
    return Failure(error="RunTimeout", message=limit if source is None else f"{limit} ({source})")


def merged(*parts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge configurations; later ones win. `configurable` and `metadata` are merged key by key."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in (part or {}).items():
            old = whole.get(key)
            if key in ("configurable", "metadata") and isinstance(old, dict) and isinstance(value, dict):
                whole[key] = {**old, **value}
            else:
                whole[key] = value
    return whole


# --- rows of states ---------------------------------------------------------------------------------------


class StateKey(NamedTuple):
    """Key of a state: thread, ID."""

    thread_id: str
    id: str


class StateBody(NamedTuple):
    """The values of a state, as JSON."""

    thread_id: str
    id: str
    body: str
