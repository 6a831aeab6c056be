"""Tables of workflow runs. Long values come last, and only views of one run read them."""

from __future__ import annotations

from perdure.kernel.storage.schema import ForeignKey, Index, Table, integer, real, text
from perdure.workflows.seed_view import WORKFLOW_RUNS_SEED

OF_RUN = ForeignKey(("ns", "run_id"), "workflow_runs", cascade=True)

RUNS = Table(
    "workflow_runs",
    (
        integer("ns"),
        text("id"),
        text("workflow_name"),
        text("trigger_id"),
        text("repo", null=True),
        integer("issue_number", null=True),
        text("current_phase"),
        text("status", default="running"),
        integer("restart_count", default=0),
        integer("started_at"),
        integer("updated_at"),
        integer("finished_at", null=True),
        integer("active", null=True),
        text("definition"),
        text("trigger_type"),
        text("triggered_by", null=True),
        text("parent_run_id", null=True),
        text("parent_node", null=True),
        integer("depth", default=0),
        integer("max_parallel", null=True),
        integer("held", null=True),
        integer("queued_at", null=True),
        integer("admitted_at", null=True),
        integer("due_at", null=True),
        integer("deadline_at", null=True),
        integer("open_nodes", default=0),
        integer("failed_nodes", default=0),
        integer("ready_nodes", default=0),
        integer("running_nodes", default=0),
        integer("waiting_nodes", default=0),
        integer("gates", default=0),
        integer("history", default=0),
        real("total_cost_usd", default=0.0),
        integer("total_tokens", default=0),
        integer("turns", default=0),
        integer("succeeded", default=0),
        integer("skipped", default=0),
        integer("deferred", default=0),
        integer("failed", default=0),
        text("lost_workers", null=True),
        text("config", null=True),
        text("error", null=True),
        text("phase_history", default="[]"),
        text("node_statuses", null=True),
        text("scratch", null=True),
        text("context", null=True),
    ),
    key=("ns", "id"),
    indexes=(
        Index("idx_workflow_runs_trigger", ("ns", "trigger_id", "status")),
        Index("idx_workflow_runs_status", ("ns", "status")),
        Index("idx_workflow_runs_started_at", ("ns", "started_at DESC")),
        Index("idx_workflow_runs_name_started", ("ns", "workflow_name", "started_at DESC")),
        Index("workflow_runs_listed", ("ns", "status", "started_at", "id")),
        Index("workflow_runs_named", ("ns", "workflow_name", "status", "started_at", "id")),
        Index("workflow_runs_repo", ("ns", "repo", "status", "started_at", "id"), "repo IS NOT NULL"),
        Index("workflow_runs_active", ("ns", "workflow_name", "trigger_id"), "active IS NOT NULL", True),
        Index("workflow_runs_children", ("ns", "parent_run_id"), "parent_run_id IS NOT NULL"),
        Index("workflow_runs_queued", ("ns", "queued_at", "id"), "queued_at IS NOT NULL"),
        Index("workflow_runs_due", ("due_at",), "due_at IS NOT NULL"),
    ),
    hot=True,
    deadlines=("due_at", "deadline_at"),
    views=(WORKFLOW_RUNS_SEED,),
)
"""Each workflow run. `active` is 1 until it has ended; `held` is 1 while an operator has paused it.

`due_at` is set while the run has work due: it leaves the queue, its stray phases are stopped, or its parent
gets its end. `succeeded`, `skipped`, `deferred` and `failed` count its executions. The history and the
statuses of nodes have rows of their own: `phase_history` and `node_statuses` stay empty, and the view
`workflow_runs_seed` has both.
"""

NODES = Table(
    "workflow_nodes",
    (
        integer("ns"),
        text("run_id"),
        text("node"),
        integer("item"),
        integer("position"),
        text("status"),
        integer("waiting_on", default=0),
        integer("succeeded_before", default=0),
        integer("failed_before", default=0),
        integer("iteration", default=0),
        integer("cycle", default=0),
        text("role", null=True),
        text("label", null=True),
        text("rollout_id", null=True),
        text("execution_id", null=True),
        text("approval_id", null=True),
        text("child_run_id", null=True),
        integer("due_at", null=True),
        integer("started_at", null=True),
        integer("ended_at", null=True),
        text("error", null=True),
        text("state", null=True),
    ),
    key=("ns", "run_id", "node", "item"),
    indexes=(
        Index("workflow_nodes_rollout", ("ns", "rollout_id"), "rollout_id IS NOT NULL", True),
        Index("workflow_nodes_status", ("ns", "run_id", "status", "position", "item")),
        Index("workflow_nodes_due", ("due_at",), "due_at IS NOT NULL"),
    ),
    hot=True,
    deadlines=("due_at",),
    foreign_keys=(OF_RUN,),
)
"""Each phase of a run, and each item of a map phase; `item` is the number of the item, from 1.

`waiting_on` counts open dependencies, `succeeded_before` and `failed_before` ended dependencies.
`rollout_id` is the current execution: no other execution changes the node.
"""

HISTORY = Table(
    "workflow_history",
    (
        integer("ns"),
        text("run_id"),
        integer("seq"),
        text("phase"),
        integer("timestamp"),
        integer("success"),
        text("summary", null=True),
    ),
    key=("ns", "run_id", "seq"),
    foreign_keys=(OF_RUN,),
)
"""Entries of the history of each run, in order."""

OUTPUTS = Table(
    "workflow_outputs",
    (integer("ns"), text("id"), text("run_id"), integer("created_at"), text("body")),
    key=("ns", "id"),
    indexes=(Index("workflow_outputs_run", ("ns", "run_id")),),
    foreign_keys=(OF_RUN,),
)
"""Values of context and scratch that are too large for the row of their run, as JSON."""

DEFINITIONS = Table(
    "workflow_definitions",
    (integer("ns"), text("digest"), text("name"), integer("created_at"), text("body")),
    key=("ns", "digest"),
)
"""Definitions that runs use, each stored once, with its prompts and the workflows that it starts."""

ADMISSION = Table("workflow_admission", (integer("ns"), integer("updated_at")), key=("ns",))
"""One row per namespace, locked by operations that start or admit runs."""

COUNTS = Table(
    "workflow_counts",
    (integer("ns"), text("workflow_name"), text("status"), integer("shard"), integer("total")),
    key=("ns", "workflow_name", "status", "shard"),
)
"""Number of runs by workflow and status, in several rows that are added up."""

TABLES = (RUNS, NODES, HISTORY, OUTPUTS, DEFINITIONS, ADMISSION, COUNTS)
