"""Rows of workflow runs, their nodes, history, definitions and outputs."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perdure.workflows.model import NodeKey


class WorkflowRunRow(msgspec.Struct):
    """A workflow run, except the columns that never change and columns that only views read."""

    id: str
    workflow_name: str
    trigger_id: str
    repo: str | None
    issue_number: int | None
    current_phase: str
    status: str
    restart_count: int
    started_at: int
    updated_at: int
    finished_at: int | None
    active: int | None
    definition: str
    trigger_type: str
    triggered_by: str | None
    parent_run_id: str | None
    parent_node: str | None
    depth: int
    max_parallel: int | None
    held: int | None
    queued_at: int | None
    admitted_at: int | None
    due_at: int | None
    deadline_at: int | None
    """Time at which the run fails if it has not ended."""
    open_nodes: int
    failed_nodes: int
    ready_nodes: int
    running_nodes: int
    waiting_nodes: int
    gates: int
    history: int
    total_cost_usd: float
    total_tokens: int
    turns: int
    succeeded: int
    skipped: int
    deferred: int
    failed: int
    lost_workers: str | None
    config: str | None
    error: str | None
    was_status: str = ""
    """Status when the row was read."""

    def __post_init__(self) -> None:
        self.was_status = self.status


class NewRunRow(WorkflowRunRow, kw_only=True):
    """A complete row of `workflow_runs`, for a new run."""

    phase_history: str = "[]"
    node_statuses: str | None = None
    scratch: str | None = None
    context: str | None = None


class WorkflowNodeRow(msgspec.Struct):
    """A row of `workflow_nodes`."""

    run_id: str
    node: str
    item: int
    position: int
    status: str
    waiting_on: int
    succeeded_before: int
    failed_before: int
    iteration: int
    cycle: int
    role: str | None
    label: str | None
    rollout_id: str | None
    execution_id: str | None
    approval_id: str | None
    child_run_id: str | None
    due_at: int | None
    started_at: int | None
    ended_at: int | None
    error: str | None
    state: str | None
    dirty: bool = False

    @property
    def key(self) -> NodeKey:
        return NodeKey(self.node, self.item)


class HistoryRow(NamedTuple):
    """A row of `workflow_history`."""

    run_id: str
    seq: int
    phase: str
    timestamp: int
    success: int
    summary: str | None


class WorkflowOutputRow(NamedTuple):
    """A row of `workflow_outputs`."""

    id: str
    run_id: str
    created_at: int
    body: str


class DefinitionRow(NamedTuple):
    """A row of `workflow_definitions`."""

    digest: str
    name: str
    created_at: int
    body: str


class WorkflowCountRow(NamedTuple):
    """A row of `workflow_counts`."""

    workflow_name: str
    status: str
    shard: int
    total: int


class ValuesRow(NamedTuple):
    """The values of a run, as JSON."""

    id: str
    context: str | None
    scratch: str | None


class ChildRunRow(NamedTuple):
    """A run started by a node of another run."""

    id: str
    parent_node: str
    status: str


class OutputBody(NamedTuple):
    """A large value, as JSON."""

    id: str
    body: str


class DefinitionBody(NamedTuple):
    """A definition, as JSON."""

    digest: str
    body: str


class AdmissionRow(NamedTuple):
    """A row of `workflow_admission`."""

    updated_at: int


class DueRun(NamedTuple):
    """A run with work due."""

    ns: int
    id: str
    status: str
    due_at: int
    deadline_at: int | None


class DueNode(NamedTuple):
    """A due node."""

    ns: int
    run_id: str
    node: str
    item: int


class GateAnswerRow(NamedTuple):
    """Answer of a person to a gate."""

    id: str
    response: str | None


class NameCount(NamedTuple):
    """Number of runs of a workflow with a status."""

    workflow_name: str
    status: str
    total: int


class TriesRow(NamedTuple):
    """Number of executions of a skill in a run, and the start of the last execution."""

    skill: str
    attempts: int
    started_at: int


class RunStatusCount(NamedTuple):
    """Number of runs with a status."""

    status: str
    total: int


class ExecutionLogRow(NamedTuple):
    """An execution whose error or output was searched."""

    id: str
    workflow_run_id: str | None
    skill: str
    started_at: int
    error: str | None
    output_text: str | None


class LogCursor(NamedTuple):
    """A position among executions, the newest first."""

    started_at: int
    id: str
