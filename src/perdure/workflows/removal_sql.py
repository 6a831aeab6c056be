"""The SQL of deleting workflow runs."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import name_statements, statement


class OldRun(NamedTuple):
    """A workflow run that has ended, and its start time."""

    started_at: int
    id: str


class TreeRun(NamedTuple):
    """Columns that decide whether a workflow run may be deleted."""

    id: str
    workflow_name: str
    status: str
    depth: int
    active: int | None
    due_at: int | None
    finished_at: int | None


# Runs without a parent that have a status and ended before a time, the oldest start first, after a cursor.
OLD_RUNS = statement(
    """
    SELECT {columns} FROM workflow_runs
    WHERE ns = :ns AND status = :status AND started_at < :before AND (started_at, id) > (:started_at, :id)
      AND finished_at < :before AND {plain:parent_run_id} IS NULL
    ORDER BY started_at, id LIMIT :n
    """,
    row=OldRun,
)
# A run.
GET_TREE_RUN = statement("SELECT {columns} FROM workflow_runs WHERE ns = :ns AND id = :id", row=TreeRun)
# Runs started by other runs.
STARTED_BY = statement(
    "SELECT {columns} FROM workflow_runs WHERE ns = :ns AND parent_run_id {among:ids}", row=TreeRun
)
# Runs by their ids, locked.
LOCK_TREE = statement(
    "SELECT {columns} FROM workflow_runs WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}", row=TreeRun
)
# Delete some executions of a run.
DROP_EXECUTIONS = statement(
    """
    DELETE FROM executions WHERE ns = :ns AND id {listed:SELECT e.id FROM executions AS e
      WHERE e.ns = :ns AND e.workflow_run_id = :run_id LIMIT :n}
    """
)
# Delete the links of approvals of a run.
DROP_LINKS = statement(
    """
    DELETE FROM approval_links WHERE ns = :ns AND approval_id {listed:SELECT a.id
      FROM workflow_approvals AS a WHERE a.ns = :ns AND a.workflow_run_id = :run_id ORDER BY a.id LIMIT :n}
    """
)
# Delete some approvals of a run. Delete their links first.
DROP_APPROVALS = statement(
    """
    DELETE FROM workflow_approvals WHERE ns = :ns AND id {listed:SELECT a.id FROM workflow_approvals AS a
      WHERE a.ns = :ns AND a.workflow_run_id = :run_id ORDER BY a.id LIMIT :n}
    """
)
# Delete some entries of the history of a run.
DROP_HISTORY = statement(
    """
    DELETE FROM workflow_history WHERE ns = :ns AND run_id = :run_id AND seq {listed:SELECT h.seq
      FROM workflow_history AS h WHERE h.ns = :ns AND h.run_id = :run_id ORDER BY h.seq LIMIT :n}
    """
)
# Delete some large values of a run.
DROP_OUTPUTS = statement(
    """
    DELETE FROM workflow_outputs WHERE ns = :ns AND id {listed:SELECT o.id FROM workflow_outputs AS o
      WHERE o.ns = :ns AND o.run_id = :run_id LIMIT :n}
    """
)
# Delete some nodes of a run.
DROP_NODES = statement(
    """
    DELETE FROM workflow_nodes WHERE ns = :ns AND run_id = :run_id AND (node, item) IN (SELECT w.node, w.item
      FROM workflow_nodes AS w WHERE w.ns = :ns AND w.run_id = :run_id ORDER BY w.node, w.item LIMIT :n)
    """
)
PARTS = (DROP_EXECUTIONS, DROP_LINKS, DROP_APPROVALS, DROP_HISTORY, DROP_OUTPUTS, DROP_NODES)
"""Rows that belong to a run, in the order of their deletion."""
# Delete a run.
DROP_RUN = statement("DELETE FROM workflow_runs WHERE ns = :ns AND id = :run_id")

name_statements(globals())
