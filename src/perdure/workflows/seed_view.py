"""View `workflow_runs_seed`: workflow runs in the columns and formats of Last Light's tables."""

from __future__ import annotations

from typing import Final

from perdure.kernel.storage.ddl import iso_time, sql_cases
from perdure.kernel.storage.schema import View
from perdure.workflows.model import (
    CANCELLED,
    FAILED,
    PENDING,
    READY,
    RUNNING,
    SKIPPED,
    SUCCEEDED,
    WAITING,
)

_SHOWN: Final = {
    PENDING: PENDING,
    READY: PENDING,
    RUNNING: RUNNING,
    WAITING: RUNNING,
    SUCCEEDED: SUCCEEDED,
    FAILED: FAILED,
    CANCELLED: FAILED,
    SKIPPED: SKIPPED,
}
"""Status of a node in Last Light's terms."""
_NODE_STATUS: Final = sql_cases("n.status", _SHOWN)
_ENTRIES: Final = "FROM workflow_history AS h WHERE h.ns = r.ns AND h.run_id = r.id"
_NODES: Final = "FROM workflow_nodes AS n WHERE n.ns = r.ns AND n.run_id = r.id AND n.item = 0"


def _lines(*parts: str) -> str:
    return " ".join(parts)


_HISTORY_SQLITE: Final = _lines(
    "(SELECT json_group_array(json(entry)) FROM (SELECT json_patch('{}', json_object('phase', h.phase,",
    "'timestamp',",
    iso_time("h.timestamp", "sqlite"),
    ", 'success', json(CASE h.success WHEN 1 THEN 'true' ELSE 'false' END), 'summary', h.summary)) AS entry",
    _ENTRIES,
    "ORDER BY h.seq))",
)
_HISTORY_POSTGRES: Final = _lines(
    "coalesce((SELECT json_agg(json_strip_nulls(json_build_object('phase', h.phase, 'timestamp',",
    iso_time("h.timestamp", "postgres"),
    ", 'success', h.success = 1, 'summary', h.summary)) ORDER BY h.seq)",
    _ENTRIES,
    ")::text, '[]')",
)
_STATUSES_SQLITE: Final = _lines(
    "(SELECT json_group_object(node, status) FROM (SELECT n.node AS node,",
    _NODE_STATUS,
    "AS status",
    _NODES,
    "ORDER BY n.position))",
)
_STATUSES_POSTGRES: Final = _lines(
    "coalesce((SELECT json_object_agg(n.node,",
    _NODE_STATUS,
    "ORDER BY n.position)",
    _NODES,
    ")::text, '{}')",
)


def _select(engine: str, history: str, statuses: str) -> str:
    times = [
        iso_time("r." + name, engine) + " AS " + name for name in ("started_at", "updated_at", "finished_at")
    ]
    columns = [
        "r.id",
        "r.workflow_name",
        "r.trigger_id",
        "r.repo",
        "r.issue_number",
        "r.current_phase",
        history + " AS phase_history",
        "r.status",
        "r.context",
        "r.scratch",
        statuses + " AS node_statuses",
        "r.restart_count",
        *times,
        "r.error",
        "s.name AS namespace",
    ]
    source = "FROM workflow_runs AS r JOIN namespaces AS s ON s.id = r.ns"
    return _lines("SELECT", ", ".join(columns), source)


WORKFLOW_RUNS_SEED: Final = View(
    "workflow_runs_seed",
    sqlite=_select("sqlite", _HISTORY_SQLITE, _STATUSES_SQLITE),
    postgres=_select("postgres", _HISTORY_POSTGRES, _STATUSES_POSTGRES),
)
"""The last 2 columns, error and namespace, are not part of Last Light's tables."""
