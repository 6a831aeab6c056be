"""The SQL of approvals and their links, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.workflows.approval_model import ApprovalRow
from perdure.workflows.approval_tables import APPROVALS

# Add approvals.
ADD = BulkInsert(APPROVALS, ApprovalRow)
# Write back approvals that have moved.
MOVE = BulkUpdate(
    APPROVALS,
    ApprovalRow,
    sets=(
        "status",
        "responded_by",
        "responded_at",
        "open",
        "expires_at",
        "reminders",
        "due_at",
        "response",
    ),
    keys=("ns", "id"),
)
# Lock the open approvals of some workflow runs, in the order of their ids.
LOCK_OPEN_OF_RUNS = statement(
    """
    SELECT {columns} FROM workflow_approvals
    WHERE ns = :ns AND workflow_run_id {among:run_ids} AND open = 1 ORDER BY id {lock}
    """,
    row=ApprovalRow,
)

name_statements(globals())
