"""What callers see of workflows and their runs. Times are ISO 8601."""

from __future__ import annotations

from typing import Any

from msgspec import field

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
    """Whether it may be run; an override switches it off."""
    file: str | None = None
    """The file that it comes from; null for one that was written in Python."""
    phases: list[PhaseInfo]


class PhaseLines(Record, kw_only=True):
    """Where a phase stands in the text of a definition: its first and its last line, from 1."""

    phase: str
    first: int
    last: int


class DefinitionText(Record, kw_only=True):
    """A definition as YAML. It is written from what is stored: prompts are texts, and comments are gone."""

    text: str
    phases: list[PhaseLines]


class WorkflowDetail(WorkflowInfo, kw_only=True):
    """A workflow with its definition, as its file says it."""

    definition: dict[str, Any]
    yaml: DefinitionText


class RunDefinition(Record, kw_only=True):
    """The definition that a run uses, whatever its file says now."""

    workflow_run_id: str
    workflow_name: str
    digest: str
    """The same for runs of the same definition."""
    current: bool | None
    """Whether it is the one that new runs use; null if this server has no such workflow."""
    definition: dict[str, Any]
    yaml: DefinitionText


class Dispatch(Record, kw_only=True):
    """The answer to a request to run a workflow."""

    workflow_run_id: str | None = None
    """The run; null if the workflow is switched off."""
    status: RunStatus | None = None
    reused: bool = False
    """Whether it is the live run of the same workflow and trigger, which goes on."""
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
    """How many workers were lost while they executed phases of it."""
    started_at: str
    updated_at: str
    finished_at: str | None = None
    admitted_at: str | None = None
    parent_run_id: str | None = None
    parent_node: str | None = None
    open_nodes: int = 0
    """How many of its phases have not ended."""
    waiting_approvals: int = 0
    held: bool = False
    """Whether somebody has paused it."""
    total_cost_usd: float = 0.0
    total_tokens: int = 0
    turns: int = 0
    executions: Outcomes = field(default_factory=Outcomes)


class WorkflowRunPage(Record, kw_only=True):
    """Runs: running ones first, then paused, then queued ones, then the rest, each the newest first."""

    items: list[WorkflowRunSummary]
    next: str | None = None
    """The cursor of the next page, if there may be more."""
    total: int | None = 0
    """How many runs match in all: kept, or with `repo` and `since` counted if `total` asks for it."""


class NodeInfo(Record, kw_only=True):
    """A phase of a run, or an item of a map phase."""

    node: str
    item: int = 0
    depends_on: list[str] = field(default_factory=list)
    """The phases that it waits for, by the definition that the run was started with."""
    status: NodeStatus
    label: str | None = None
    """What of it is executed, or was last."""
    iteration: int = 0
    cycle: int = 0
    rollout_id: str | None = None
    execution_id: str | None = None
    """The execution whose output is that of the phase."""
    approval_id: str | None = None
    child_run_id: str | None = None
    due_at: str | None = None
    started_at: str | None = None
    """When it began, with its first attempt."""
    ended_at: str | None = None
    attempts: int = 0
    """How often what `label` names was executed."""
    attempt_started_at: str | None = None
    """When the last of these attempts began."""
    error: str | None = None


class HistoryEntry(Record, kw_only=True):
    """Something that has happened in a run."""

    phase: str
    timestamp: str
    success: bool
    summary: str | None = None


class WorkflowRun(WorkflowRunSummary, kw_only=True):
    """A workflow run with its phases, its history and its values."""

    definition: str
    """The digest of the definition that it was started with."""
    max_parallel: int | None = None
    context: dict[str, Any]
    scratch: dict[str, Any]
    node_statuses: dict[str, NodeStatus]
    nodes: list[NodeInfo]
    phase_history: list[HistoryEntry]
    """The latest entries, in their order."""
    final_message: str | None = None
    """What the workflow says at its success."""
    checklist: str | None = None
    """The phases with a mark each, if the workflow asks for it."""


class WorkflowStatusCounts(Record, kw_only=True):
    """How many runs of a workflow have each status."""

    workflow_name: str
    counts: dict[RunStatus, int]


class ValueDifference(Record, kw_only=True):
    """A value that two runs do not share, by the path to it."""

    path: str
    left: Any = None
    right: Any = None


class RunDiff(Record, kw_only=True):
    """What two runs do not share."""

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


class LogPage(Record, kw_only=True):
    """Executions that contain a text. `next` is the cursor of the ones before them, if there are any."""

    items: list[LogMatch]
    next: str | None = None
