"""State machines of workflow runs and their nodes, labels and limits.

Everything here is pure: no I/O, no clock, no randomness.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from perdure.kernel.machine import Machine
from perdure.rollouts.model import LIVE as LIVE_ROLLOUTS
from perdure.rollouts.model import QUEUED as QUEUED_ROLLOUTS

RunStatus = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
RUN_STATUSES: Final[tuple[RunStatus, ...]] = get_args(RunStatus)
NodeStatus = Literal["pending", "ready", "running", "waiting", "succeeded", "failed", "skipped", "cancelled"]
NODE_STATUSES: Final[tuple[NodeStatus, ...]] = get_args(NodeStatus)
TriggerType = Literal["webhook", "cron", "chat", "api"]
TRIGGER_TYPES: Final[tuple[TriggerType, ...]] = get_args(TriggerType)
DefinitionChoice = Literal["original", "current"]
"""Definition that a retry uses: the definition at the run's start, or the current definition in the file."""
DEFINITION_CHOICES: Final[tuple[DefinitionChoice, ...]] = get_args(DefinitionChoice)
Role = Literal["work", "fix", "recheck", "check"]

QUEUED: Final = "queued"
RUNNING: Final = "running"
PAUSED: Final = "paused"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
PENDING: Final = "pending"
READY: Final = "ready"
WAITING: Final = "waiting"
SKIPPED: Final = "skipped"

LIVE: Final = (RUNNING, PAUSED, QUEUED)
"""Statuses of runs that have not ended, in the order of lists."""
ENDED: Final = (SUCCEEDED, FAILED, CANCELLED)
NOT_ENDED: Final = (*LIVE_ROLLOUTS, *QUEUED_ROLLOUTS)
"""Statuses of rollouts that are executed or wait for a worker."""
NODE_ENDED: Final = frozenset({SUCCEEDED, FAILED, SKIPPED, CANCELLED})

RUN: Final = (
    Machine("workflow run", RUN_STATUSES, start={"dispatched": RUNNING, "enqueued": QUEUED}, final=ENDED)
    .on("admitted", [QUEUED], RUNNING)
    .on("expired", [QUEUED], CANCELLED)
    .on("paused", [RUNNING], PAUSED)
    .on("resumed", [PAUSED], RUNNING)
    .on("succeeded", [RUNNING, PAUSED], SUCCEEDED)
    .on("failed", [RUNNING, PAUSED], FAILED)
    .on("cancelled", LIVE, CANCELLED)
    .on("retried", [FAILED, CANCELLED], RUNNING)
)
"""An end is final; only a retry, requested by a person, leaves it."""

_OPEN = [PENDING, READY, RUNNING, WAITING]
NODE: Final = (
    Machine("workflow node", NODE_STATUSES, start={"planned": PENDING}, final=NODE_ENDED)
    .on("dependencies ended", [PENDING], READY)
    .on("started", [READY, WAITING], RUNNING)
    .on("queued again", [RUNNING, WAITING], READY)
    .on("waits", [READY, RUNNING], WAITING)
    .on("succeeded", [READY, RUNNING, WAITING], SUCCEEDED)
    .on("failed", [READY, RUNNING, WAITING], FAILED)
    .on("skipped", [PENDING, READY], SKIPPED)
    .on("cancelled", _OPEN, CANCELLED)
    .on("reset", NODE_STATUSES, PENDING)
)
"""A reset is a retry of the run, or a jump back to an earlier phase."""

WAITING_APPROVAL: Final = "waiting_approval"
"""Current phase of a run that waits for a person."""
MAX_RESTARTS: Final = 3
"""Number of lost workers that a run survives."""
MAX_JUMPS: Final = 10
"""Maximum number of jumps of a failed phase to another phase."""
MAX_DEPTH: Final = 8
"""Maximum nesting of workflows that start workflows."""
MAX_LIVE: Final = 1000
"""Maximum number of phases of a run that execute or wait for a worker at once."""
MAX_ITEMS: Final = 1000
"""Maximum number of items of a map phase."""
MAX_ERROR: Final = 1000
"""Maximum length of an error in a row."""
MAX_INLINE: Final = 16 << 10
"""Maximum length of a value of context or scratch in the row of its run, as JSON."""
MAX_CONTEXT: Final = 64 << 10
"""Maximum length of context and scratch in the row of a run; the largest values move to other rows."""
MAX_BODY: Final = 1 << 20
"""Maximum length of context and scratch that a caller passes, as JSON."""
QUEUE_SECONDS: Final = 3600.0
"""Maximum time that a run waits to be admitted before it is cancelled."""
DEFAULT_CAP: Final = 4
"""Default number of runs of a namespace that run at once."""


# --- labels -----------------------------------------------------------------------------------------------

LabelKind = Literal["phase", "fix", "recheck", "iter", "retry", "check", "item"]
_LABEL = re.compile(
    r"(?P<phase>.+?)_(?P<kind>fix|recheck|item)_(?P<number>\d+)"
    r"|(?P<looped>.+?)_iter_(?P<iteration>\d+)(?:_(?P<part>retry|check))?"
)


class Label(NamedTuple):
    """Label of an execution: `plan_iter_2_check` is the check of iteration 2 of plan."""

    phase: str
    kind: LabelKind = "phase"
    number: int = 0

    def __str__(self) -> str:
        if self.kind == "phase":
            return self.phase
        if self.kind in ("retry", "check"):
            return f"{self.phase}_iter_{self.number}_{self.kind}"
        return f"{self.phase}_{self.kind}_{self.number}"


def parse_label(text: str) -> Label:
    """Parse a label. A text without a number is the label of a phase."""
    match = _LABEL.fullmatch(text)
    if match is None:
        return Label(text)
    if match["kind"]:
        return Label(match["phase"], match["kind"], int(match["number"]))  # type: ignore[arg-type]
    part: LabelKind = match["part"] or "iter"  # type: ignore[assignment]
    return Label(match["looped"], part, int(match["iteration"]))


def build_skill(workflow_name: str, label: str) -> str:
    """Build the key to find the executions of a phase by."""
    return workflow_name + ":" + label


class NodeKey(NamedTuple):
    """Key of a node of a run: a phase, or an item of a map phase. As text it is `phase` or `phase#3`."""

    node: str
    item: int = 0

    def __str__(self) -> str:
        return f"{self.node}#{self.item}" if self.item else self.node


def parse_node(text: str) -> NodeKey:
    """Parse the key of a node."""
    node, _, item = text.partition("#")
    return NodeKey(node, int(item) if item.isdecimal() else 0)


# --- executions of phases ---------------------------------------------------------------------------------


class Pointer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored input of a phase, rendered when a worker claims it."""

    workflow_run_id: str
    node: str
    label: str
    role: Role = "work"
    item: int = 0
    iteration: int = 0
    cycle: int = 0
    sandbox: str | None = None
    """Sandbox required to execute the phase."""
    network: bool = False

    @property
    def text(self) -> str:
        """Return the pointer as JSON."""
        return msgspec.json.encode(self).decode()


class PhaseEnd(NamedTuple):
    """End of an execution of a phase."""

    rollout_id: str
    success: bool
    output: str
    error: str | None
    stop_reason: str | None
    execution_id: str | None
    interrupted: bool = False
    """True if its graph waits for an answer on its thread."""


def error_text(error: Any) -> str:
    """Return an error as a text of limited length that every database accepts."""
    return str(error)[:MAX_ERROR].replace("\0", "\ufffd").encode("utf-8", "replace").decode()
