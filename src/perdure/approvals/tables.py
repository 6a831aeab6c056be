"""Tables of approvals and of the links that decide them."""

from perdure.kernel.storage.schema import ForeignKey, Index, Table, integer, text

APPROVALS = Table(
    "workflow_approvals",
    (
        integer("ns"),
        text("id"),
        text("workflow_run_id"),
        text("gate"),
        text("status", default="pending"),
        text("kind", default="approve"),
        text("requested_by", null=True),
        text("responded_by", null=True),
        integer("responded_at", null=True),
        integer("created_at"),
        integer("open"),
        text("workflow_name"),
        text("trigger_id"),
        text("node"),
        text("label"),
        text("assignees", null=True),
        integer("expires_at", null=True),
        text("on_expiry"),
        integer("remind_every", null=True),
        integer("reminders"),
        integer("due_at", null=True),
        text("summary"),
        text("response", null=True),
        text("responded_with", null=True),
        text("responded_with_id", null=True),
        text("answer_by", null=True),
        text("artifact", null=True),
    ),
    key=("ns", "id"),
    indexes=(
        Index("idx_approvals_workflow", ("ns", "workflow_run_id")),
        Index("idx_approvals_status", ("ns", "status")),
        Index("workflow_approvals_order", ("ns", "open", "created_at", "id")),
        Index("workflow_approvals_status_order", ("ns", "status", "created_at", "id")),
        Index("workflow_approvals_trigger", ("ns", "trigger_id", "open", "created_at", "id")),
        Index("workflow_approvals_due", ("due_at",), where="due_at IS NOT NULL"),
    ),
    deadlines=("due_at", "expires_at"),
    foreign_keys=(ForeignKey(("ns", "workflow_run_id"), "workflow_runs"),),
)
"""Each approval. `open` is 1 while it is pending; `due_at` is the time of its next reminder or its expiry."""

LINKS = Table(
    "approval_links",
    (
        integer("ns"),
        text("id"),
        text("approval_id"),
        text("assignee"),
        text("hash"),
        integer("created_at"),
        integer("expires_at"),
        integer("used_at", null=True),
    ),
    key=("ns", "id"),
    indexes=(
        Index("approval_links_id", ("id",), unique=True),
        Index("approval_links_approval", ("ns", "approval_id", "id")),
    ),
    foreign_keys=(ForeignKey(("ns", "approval_id"), "workflow_approvals"),),
)
"""Links that decide an approval in the name of an assignee. Only the hashes of their secrets are stored."""

TABLES = (APPROVALS, LINKS)
