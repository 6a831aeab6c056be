"""SQL of approvals and their links, written once for both engines."""

from __future__ import annotations

from perdure.approvals.link_model import ApprovalLinkRow
from perdure.approvals.model import ApprovalRow
from perdure.approvals.tables import APPROVALS, LINKS
from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement

# Add approvals.
ADD = BulkInsert(APPROVALS, ApprovalRow)
# Write back changed approvals.
MOVE = BulkUpdate(
    APPROVALS,
    ApprovalRow,
    sets=(
        "status",
        "responded_by",
        "responded_at",
        "open",
        "reminders",
        "due_at",
        "response",
        "responded_with",
        "responded_with_id",
    ),
    keys=("ns", "id"),
)
# An approval.
GET = statement("SELECT {columns} FROM workflow_approvals WHERE ns = :ns AND id = :id", row=ApprovalRow)
# The artifact of an approval.
GET_ARTIFACT = statement("SELECT artifact FROM workflow_approvals WHERE ns = :ns AND id = :id", row=str)
# Lock an approval.
LOCK = statement(
    "SELECT {columns} FROM workflow_approvals WHERE ns = :ns AND id = :id {lock}", row=ApprovalRow
)
# Lock the open approvals of some workflow runs, in the order of their ids.
LOCK_OPEN_OF_RUNS = statement(
    """
    SELECT {columns} FROM workflow_approvals
    WHERE ns = :ns AND workflow_run_id {among:run_ids} AND {plain:open} = 1 ORDER BY {plain:id} {lock}
    """,
    row=ApprovalRow,
)
# Some open approvals of a workflow run, the oldest first.
OPEN_OF_RUN = statement(
    """
    SELECT {columns} FROM workflow_approvals
    WHERE ns = :ns AND workflow_run_id = :run_id AND {plain:open} = 1
    ORDER BY {plain:created_at}, id LIMIT :n
    """,
    row=ApprovalRow,
)
# Approvals by the first digits of their ids; 2 rows show that several match.
BY_PREFIX = statement(
    """
    SELECT {columns} FROM workflow_approvals
    WHERE ns = :ns AND id >= :first AND id < :last ORDER BY id LIMIT 2
    """,
    row=ApprovalRow,
)
# A page of all approvals: the open ones first, then the newest first.
LIST = statement(
    """
    SELECT {columns} FROM workflow_approvals
    WHERE ns = :ns AND (open, created_at, id) < (:open, :created_at, :id)
    ORDER BY open DESC, created_at DESC, id DESC LIMIT :limit
    """,
    row=ApprovalRow,
)
# A page of the approvals with a status, the newest first.
LIST_BY_STATUS = statement(
    """
    SELECT {columns} FROM workflow_approvals
    WHERE ns = :ns AND status = :status AND (created_at, id) < (:created_at, :id)
    ORDER BY created_at DESC, id DESC LIMIT :limit
    """,
    row=ApprovalRow,
)
# A page of the approvals of a trigger: the open ones first, then the newest first.
LIST_BY_TRIGGER = statement(
    """
    SELECT {columns} FROM workflow_approvals
    WHERE ns = :ns AND trigger_id = :trigger_id AND status {among:statuses}
      AND (open, created_at, id) < (:open, :created_at, :id)
    ORDER BY open DESC, created_at DESC, id DESC LIMIT :limit
    """,
    row=ApprovalRow,
)
# A page of the approvals of a workflow run: the open ones first, then the newest first.
LIST_BY_RUN = statement(
    """
    SELECT {columns} FROM workflow_approvals
    WHERE ns = :ns AND workflow_run_id = :workflow_run_id AND {plain:status} {among:statuses}
      AND ({plain:open}, created_at, id) < (:open, :created_at, :id)
    ORDER BY {plain:open} DESC, created_at DESC, id DESC LIMIT :limit
    """,
    row=ApprovalRow,
)
# The newest open approval of a trigger, of any of these kinds.
NEWEST_OPEN = statement(
    """
    SELECT {columns} FROM workflow_approvals
    WHERE ns = :ns AND trigger_id = :trigger_id AND open = 1 AND kind {among:kinds}
    ORDER BY created_at DESC, id DESC LIMIT 1
    """,
    row=ApprovalRow,
)

# The namespaces with due approvals.
DUE_NAMESPACES = statement("SELECT DISTINCT {plain:ns} FROM workflow_approvals WHERE due_at <= :now", row=int)
# The next due time of all namespaces.
NEXT_DUE = statement("SELECT min(due_at) FROM workflow_approvals WHERE due_at > 0", row=int)
# Some due approvals, the longest due first.
DUE = statement(
    """
    SELECT id FROM workflow_approvals
    WHERE {plain:ns} = :ns AND due_at <= :now ORDER BY due_at LIMIT :n
    """,
    row=str,
)

# Add links. A link that is sent again gets a new secret unless it was used.
ADD_LINKS = BulkInsert(
    LINKS,
    ApprovalLinkRow,
    on_conflict="UPDATE SET hash = excluded.hash, expires_at = excluded.expires_at "
    "WHERE approval_links.used_at IS NULL",
)
# A link, in any namespace.
FIND_LINK = statement("SELECT {columns} FROM approval_links WHERE id = :id", row=ApprovalLinkRow)
# Lock a link.
LOCK_LINK = statement(
    "SELECT {columns} FROM approval_links WHERE ns = :ns AND id = :id {lock}", row=ApprovalLinkRow
)
# Mark a link as used, once.
USE_LINK = statement(
    "UPDATE approval_links SET used_at = :now WHERE ns = :ns AND id = :id AND used_at IS NULL"
)
# A page of the links of an approval, in the order of their ids.
LIST_LINKS = statement(
    """
    SELECT {columns} FROM approval_links
    WHERE ns = :ns AND approval_id = :approval_id AND id > :after ORDER BY id LIMIT :limit
    """,
    row=ApprovalLinkRow,
)
# The number of links of an approval.
COUNT_LINKS = statement(
    "SELECT count(*) FROM approval_links WHERE ns = :ns AND approval_id = :approval_id", row=int
)

name_statements(globals())
