"""Records of workflows and their runs, as callers get them. Times are ISO 8601."""

from __future__ import annotations

from typing import Any

from msgspec import field

from perdure.kernel.pages import Part
from perdure.kernel.record import Record
from perdure.workflows.model import NodeStatus, RunStatus


class PhaseInfo(Record, kw_only=True):
    """A phase of a workflow."""

    name: str
    type: str
    label: str | None = None
    depends_on: list[str]
    trigger_rule: str = "all_success"


class WorkflowInfo(Record, kw_only=True):
    """A workflow that can be run."""

    name: str
    description: str = ""
    trigger: str | None = None
    enabled: bool = True
    """Whether it may be run; an override can disable it."""
    file: str | None = None
    """File that defines it; null for a workflow defined in Python."""
    phases: list[PhaseInfo]


class PhaseLines(Record, kw_only=True):
    """First and last line of a phase in the text of a definition, from 1."""

    phase: str
    first: int
    last: int


class DefinitionText(Record, kw_only=True):
    """A definition as YAML, generated from what is stored: prompts are inline, and comments are lost."""

    text: str
    phases: list[PhaseLines]


class WorkflowDetail(WorkflowInfo, kw_only=True):
    """A workflow with its definition."""

    definition: dict[str, Any]
    yaml: DefinitionText


class RunDefinition(Record, kw_only=True):
    """The definition that a run uses, independent of later changes of its file."""

    workflow_run_id: str
    workflow_name: str
    digest: str
    """Equal for runs of the same definition."""
    current: bool | None
    """Whether new runs use it; null if this server has no such workflow."""
    definition: dict[str, Any]
    yaml: DefinitionText


class Dispatch(Record, kw_only=True):
    """The answer to a request to run a workflow."""

    workflow_run_id: str | None = None
    """The run; null if the workflow is switched off."""
    status: RunStatus | None = None
    reused: bool = False
    """Whether it is the existing live run of the same workflow and trigger."""
    enabled: bool = True


class Outcomes(Record, kw_only=True):
    """How the executions of a run ended."""

    succeeded: int = 0
    skipped: int = 0
    deferred: int = 0
    failed: int = 0


class WorkflowRunSummary(Record, kw_only=True):
    """A workflow run, without its values."""

    workflow_run_id: str
    workflow_name: str
    trigger_id: str
    trigger_type: str
    triggered_by: str | None = None
    repo: str | None = None
    issue_number: int | None = None
    status: RunStatus
    current_phase: str
    error: str | None = None
    restart_count: int = 0
    """Number of workers lost while they executed phases of the run."""
    started_at: str
    updated_at: str
    finished_at: str | None = None
    admitted_at: str | None = None
    parent_run_id: str | None = None
    parent_node: str | None = None
    open_nodes: int = 0
    """Number of its phases that have not ended."""
    waiting_approvals: int = 0
    held: bool = False
    """Whether an operator paused it."""
    total_cost_usd: float = 0.0
    total_tokens: int = 0
    turns: int = 0
    executions: Outcomes = field(default_factory=Outcomes)


class WorkflowRunPage(Part[WorkflowRunSummary], kw_only=True):
    """Runs: running ones first, then paused, queued and ended ones; the newest first within each."""

    # Not a Page, which would add `limit` and `offset` to the wire.
    total: int | None = 0
    """Number of matching runs; with `repo` or `since`, counted only if `total` asks for it."""


class NodeInfo(Record, kw_only=True):
    """A phase of a run, or an item of a map phase."""

    node: str
    item: int = 0
    depends_on: list[str] = field(default_factory=list)
    """Phases that it waits for, in the definition that the run uses."""
    status: NodeStatus
    label: str | None = None
    """Name of what is executed, or was executed last."""
    iteration: int = 0
    cycle: int = 0
    rollout_id: str | None = None
    execution_id: str | None = None
    """Execution whose output is the output of the phase."""
    approval_id: str | None = None
    child_run_id: str | None = None
    due_at: str | None = None
    started_at: str | None = None
    """Start of its first attempt."""
    ended_at: str | None = None
    attempts: int = 0
    """Number of executions of `label`."""
    attempt_started_at: str | None = None
    """Start of the last of these attempts."""
    error: str | None = None


class HistoryEntry(Record, kw_only=True):
    """An event in the history of a run."""

    phase: str
    timestamp: str
    success: bool
    summary: str | None = None


class WorkflowRun(WorkflowRunSummary, kw_only=True):
    """A workflow run with its phases, its history and its values."""

    definition: str
    """Digest of the definition that the run uses."""
    max_parallel: int | None = None
    context: dict[str, Any]
    scratch: dict[str, Any]
    node_statuses: dict[str, NodeStatus]
    nodes: list[NodeInfo]
    phase_history: list[HistoryEntry]
    """The latest entries, in their order."""
    final_message: str | None = None
    """Message of the workflow after its success."""
    checklist: str | None = None
    """The phases with a mark each, if the workflow asks for it."""


class WorkflowStatusCounts(Record, kw_only=True):
    """Number of runs of a workflow by status."""

    workflow_name: str
    counts: dict[RunStatus, int]


class ValueDifference(Record, kw_only=True):
    """A value that differs between two runs, with the path to it."""

    path: str
    left: Any = None
    right: Any = None


class RunDiff(Record, kw_only=True):
    """Differences between two runs."""

    left: str
    right: str
    same_definition: bool
    differences: list[ValueDifference]


class LogMatch(Record, kw_only=True):
    """An execution whose error or output contains a text."""

    execution_id: str
    workflow_run_id: str | None = None
    skill: str
    started_at: str
    where: str
    """`error` or `output`."""
    excerpt: str
