"""SQL of overrides, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.workflows.override_model import WorkflowOverrideRow
from perdure.workflows.override_tables import OVERRIDES

# Overrides by the name of the workflow.
GET = statement(
    "SELECT {columns} FROM workflow_overrides WHERE ns = :ns AND name {among:names}", row=WorkflowOverrideRow
)
# A page of the overrides of a namespace, after a name.
LIST = statement(
    "SELECT {columns} FROM workflow_overrides WHERE ns = :ns AND name > :after ORDER BY name LIMIT :limit",
    row=WorkflowOverrideRow,
)
# The workflows that are switched off.
DISABLED = statement("SELECT name FROM workflow_overrides WHERE ns = :ns AND enabled = :enabled", row=str)
# Insert or update overrides.
SET = BulkInsert(
    OVERRIDES,
    WorkflowOverrideRow,
    on_conflict="UPDATE SET enabled = excluded.enabled, updated_at = excluded.updated_at, "
    "updated_by = excluded.updated_by",
)
# Delete an override.
DROP = statement("DELETE FROM workflow_overrides WHERE ns = :ns AND name = :name")

name_statements(globals())
