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
"""What workers execute: the runs of callers, and the phases of workflows."""
QueueName = Literal["agents", "workflows"]
RUN_QUEUES: Final[tuple[QueueName, ...]] = (AGENTS_QUEUE, WORKFLOWS_QUEUE)
"""Where workers claim from, unless they are told otherwise."""

GATHER_SECONDS: Final = 0.005
"""How long, while many runs are created or end at once, a few wait for more to share a transaction."""

TEMPORARY: Final = 1
"""The mark of a thread that ends with its run."""
SINGLE: Final = 1
"""The mark of a thread that was created for one run, unless the caller asked to keep it."""
OF_PHASES: Final = 2
"""The mark of a thread of phases: no list shows it, and runs cannot be created on it."""

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
"""What each way to end is called."""

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
    """Return the status of a run by the status and the outcome of its rollout; no outcome is empty."""
    return {**{(status, ""): name for status, name in _DEFAULTS.items()}, **_ENDINGS}


def run_status(rollout_status: str, outcome: str | None) -> RunStatus:
    """A run's status, by its rollout's status and outcome."""
    return _ENDINGS.get((rollout_status, outcome or ""), _DEFAULTS[rollout_status])


def _run_machine() -> Machine:
    """How the status of a run changes: the part of the rollout's table that runs use, as statuses of runs."""
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
    """The statuses, and for an end the outcomes, of the rollouts whose runs have a status."""
    if status in LIVE_STATUSES:
        return tuple(sorted(QUEUED if status == "pending" else LIVE)), ()
    found = [pair for pair, name in _ENDINGS.items() if name == status]
    return tuple(sorted({ended for ended, _ in found})), tuple(sorted({outcome for _, outcome in found}))


def resting_status(ended: RunStatus, *, began: bool, unfinished: bool, before: str) -> ThreadStatus:
    """A thread's status once a run has ended like this and no other waits.

    `began` says whether the run was ever executed, `unfinished` whether its state has something next, and
    `before` how the thread rested before the run.
    """
    if ended == "rollback" or (ended == "interrupted" and not began):
        return _KNOWN[before]
    if ended in FAILURES:
        return "error"
    return "interrupted" if unfinished or ended == "interrupted" else "idle"


_KNOWN: Final[Mapping[str, ThreadStatus]] = {
    "idle": "idle",
    "interrupted": "interrupted",
    "error": "error",
    "busy": "idle",
}


EXCEEDED: Final = "ExceededMaxAttempts"


def exceeded(run_id: str, max_attempts: int, cause: Failure | None) -> Failure:
    """The end of a run whose last attempt failed in a way that would have been tried again."""
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
"""How long a failed run waits before its next attempt."""

SILENT: Final = Failure(error="WorkerLost", message="the worker that executed it fell silent")


def took_too_long(seconds: float | None, source: str | None = None) -> Failure:
    """The failure of a run that took longer than a limit, which `source` names."""
    limit = f"the run took longer than {seconds:g} s" if seconds else "timeout"
    return Failure(error="RunTimeout", message=limit if source is None else f"{limit} ({source})")


def merged(*parts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Configurations over each other, the later ones on top; `configurable` and `metadata` are merged."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in (part or {}).items():
            known = whole.get(key)
            if key in ("configurable", "metadata") and isinstance(known, dict) and isinstance(value, dict):
                whole[key] = {**known, **value}
            else:
                whole[key] = value
    return whole


# --- rows of states ---------------------------------------------------------------------------------------


class StateKey(NamedTuple):
    """Which state of which thread."""

    thread_id: str
    id: str


class StateBody(NamedTuple):
    """The values of a state, as JSON."""

    thread_id: str
    id: str
    body: str
