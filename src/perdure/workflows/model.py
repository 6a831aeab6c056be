"""The state machines of workflow runs and their nodes, labels and bounds.

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
"""Which definition a retry goes on with: that with which the run began, or that of the file now."""
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
"""The statuses of runs that have not ended, in the order of lists."""
ENDED: Final = (SUCCEEDED, FAILED, CANCELLED)
NOT_ENDED: Final = (*LIVE_ROLLOUTS, *QUEUED_ROLLOUTS)
"""The statuses of rollouts that are executed or wait for a worker."""
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
"""An end is for good: only a retry, which a person asks for, leaves it."""

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
"""A reset is a retry of the run, or a jump back to a phase before it."""

WAITING_APPROVAL: Final = "waiting_approval"
"""The current phase of a run that waits for a person."""
MAX_RESTARTS: Final = 3
"""How many lost workers a run outlives."""
MAX_JUMPS: Final = 10
"""How often a phase that failed may go back to another."""
MAX_DEPTH: Final = 8
"""How deep workflows may start one another."""
MAX_LIVE: Final = 1000
"""How many phases of a run execute or wait for a worker at once."""
MAX_ITEMS: Final = 1000
"""How many items a map phase has."""
MAX_ERROR: Final = 1000
"""How many characters of an error a row keeps."""
MAX_INLINE: Final = 16 << 10
"""How long a value of context or scratch is, as JSON, that stands in the row of its run."""
MAX_CONTEXT: Final = 64 << 10
"""How long context and scratch are in the row of a run; the largest values are moved to other rows."""
MAX_BODY: Final = 1 << 20
"""How long context and scratch are, as JSON, when they are given."""
QUEUE_SECONDS: Final = 3600.0
"""How long a run waits to be admitted before it is cancelled."""
DEFAULT_CAP: Final = 4
"""How many runs of a namespace run at once, unless a setting says otherwise."""


# --- labels -----------------------------------------------------------------------------------------------

LabelKind = Literal["phase", "fix", "recheck", "iter", "retry", "check", "item"]
_LABEL = re.compile(
    r"(?P<phase>.+?)_(?P<kind>fix|recheck|item)_(?P<number>\d+)"
    r"|(?P<looped>.+?)_iter_(?P<iteration>\d+)(?:_(?P<part>retry|check))?"
)


class Label(NamedTuple):
    """A label of an execution, taken apart: `plan_iter_2_check` is the check of iteration 2 of plan."""

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
    """A label, taken apart. What has no number is the label of a phase."""
    found = _LABEL.fullmatch(text)
    if found is None:
        return Label(text)
    if found["kind"]:
        return Label(found["phase"], found["kind"], int(found["number"]))  # type: ignore[arg-type]
    part: LabelKind = found["part"] or "iter"  # type: ignore[assignment]
    return Label(found["looped"], part, int(found["iteration"]))


def build_skill(workflow_name: str, label: str) -> str:
    """What the executions of a phase are found by."""
    return workflow_name + ":" + label


class NodeKey(NamedTuple):
    """A node of a run: a phase, or an item of a map phase. As a text it is `phase` or `phase#3`."""

    node: str
    item: int = 0

    def __str__(self) -> str:
        return f"{self.node}#{self.item}" if self.item else self.node


def parse_node(text: str) -> NodeKey:
    """A node from its text."""
    node, _, item = text.partition("#")
    return NodeKey(node, int(item) if item.isdecimal() else 0)


# --- executions of phases ---------------------------------------------------------------------------------


class Pointer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored input of a phase: what is rendered when a worker claims it."""

    workflow_run_id: str
    node: str
    label: str
    role: Role = "work"
    item: int = 0
    iteration: int = 0
    cycle: int = 0
    sandbox: str | None = None
    """The sandbox in which the phase must be executed."""
    network: bool = False

    @property
    def text(self) -> str:
        """It as JSON."""
        return msgspec.json.encode(self).decode()


class PhaseEnd(NamedTuple):
    """How the execution of a phase ended."""

    rollout_id: str
    success: bool
    output: str
    error: str | None
    stop_reason: str | None
    execution_id: str | None
    interrupted: bool = False
    """Whether its graph waits for an answer on its thread."""


def error_text(error: Any) -> str:
    """What a row keeps of an error: a text that every database takes."""
    return str(error)[:MAX_ERROR].replace("\0", "\ufffd").encode("utf-8", "replace").decode()
