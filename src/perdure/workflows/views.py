"""Convert rows of runs to the records that callers get. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from perdure.kernel.clock import to_iso, to_iso_or_none
from perdure.kernel.pages import Keyset
from perdure.workflows.definition import Workflow
from perdure.workflows.graph import compute_dependencies
from perdure.workflows.model import (
    ENDED,
    FAILED,
    LIVE,
    RUNNING,
    SKIPPED,
    SUCCEEDED,
    WAITING,
    WAITING_APPROVAL,
    NodeStatus,
    parse_label,
)
from perdure.workflows.records import (
    DefinitionText,
    HistoryEntry,
    NodeInfo,
    Outcomes,
    PhaseInfo,
    ValueDifference,
    WorkflowDetail,
    WorkflowInfo,
    WorkflowRunSummary,
)
from perdure.workflows.rows import HistoryRow, LogCursor, TriesRow, WorkflowNodeRow, WorkflowRunRow

MAX_DIFFERENCES: Final = 500
_MARKS: Final = {SUCCEEDED: "[x]", FAILED: "[!]", SKIPPED: "[-]", RUNNING: "[>]", WAITING: "[?]"}
_SAME: Final = (
    "workflow_name",
    "trigger_id",
    "trigger_type",
    "triggered_by",
    "repo",
    "issue_number",
    "status",
    "current_phase",
    "error",
    "restart_count",
    "parent_run_id",
    "parent_node",
    "open_nodes",
    "total_cost_usd",
    "total_tokens",
    "turns",
)
"""Fields of a run that are columns of its row."""


def summary_fields(row: WorkflowRunRow) -> dict[str, Any]:
    """Return the fields of a run in a list."""
    return {
        "workflow_run_id": row.id,
        "started_at": to_iso(row.started_at),
        "updated_at": to_iso(row.updated_at),
        "finished_at": to_iso_or_none(row.finished_at),
        "admitted_at": to_iso_or_none(row.admitted_at),
        "waiting_approvals": row.gates,
        "held": bool(row.held),
        "executions": Outcomes(
            succeeded=row.succeeded, skipped=row.skipped, deferred=row.deferred, failed=row.failed
        ),
        **{name: getattr(row, name) for name in _SAME},
    }


def row_to_summary(row: WorkflowRunRow) -> WorkflowRunSummary:
    """Convert a row to the record of a run in a list."""
    return WorkflowRunSummary(**summary_fields(row))


def row_to_node_info(row: WorkflowNodeRow, depends_on: Sequence[str], tries: TriesRow | None) -> NodeInfo:
    """Convert a row to the record of a node."""
    return NodeInfo(
        node=row.node,
        item=row.item,
        depends_on=list(depends_on),
        status=cast(NodeStatus, row.status),
        label=row.label,
        iteration=row.iteration,
        cycle=row.cycle,
        rollout_id=row.rollout_id,
        execution_id=row.execution_id,
        approval_id=row.approval_id,
        child_run_id=row.child_run_id,
        due_at=to_iso_or_none(row.due_at),
        started_at=to_iso_or_none(row.started_at),
        ended_at=to_iso_or_none(row.ended_at),
        attempts=0 if tries is None else tries.attempts,
        attempt_started_at=None if tries is None else to_iso(tries.started_at),
        error=row.error,
    )


def row_to_history_entry(row: HistoryRow) -> HistoryEntry:
    """Convert a row to an entry of the history."""
    return HistoryEntry(
        phase=row.phase, timestamp=to_iso(row.timestamp), success=bool(row.success), summary=row.summary
    )


def build_checklist(
    workflow: Workflow, nodes: Sequence[WorkflowNodeRow], history: Sequence[HistoryRow]
) -> str | None:
    """Build a list of the phases with a mark and the latest message each, if the workflow asks for it."""
    if not workflow.status_checklist:
        return None
    labels = {phase.name: phase.label or phase.name for phase in workflow.phases}
    details = {parse_label(row.phase).phase: row.summary for row in history if row.phase != WAITING_APPROVAL}
    lines = []
    for node in nodes:
        if not node.item:
            detail = details.get(node.node)
            more = f" — {detail}" if detail and "\n" not in detail.strip() else ""
            lines.append(f"- {_MARKS.get(node.status, '[ ]')} {labels[node.node]}{more}")
    return "\n".join(lines)


# --- definitions ------------------------------------------------------------------------------------------


def build_info(workflow: Workflow, file: str | None, *, enabled: bool) -> WorkflowInfo:
    """Build the record of a workflow in a list."""
    return WorkflowInfo(**_info_fields(workflow, file, enabled))


def build_detail(workflow: Workflow, file: str | None, *, enabled: bool) -> WorkflowDetail:
    """Build the record of a workflow with its definition."""
    definition = msgspec.to_builtins(workflow)
    fields = _info_fields(workflow, file, enabled)
    return WorkflowDetail(**fields, definition=definition, yaml=encode_yaml(workflow))


def encode_yaml(workflow: Workflow) -> DefinitionText:
    """Encode a workflow as YAML."""
    # Imported here because clients import this module and need no YAML.
    from perdure.workflows.text import encode_yaml

    return encode_yaml(workflow)


def _info_fields(workflow: Workflow, file: str | None, enabled: bool) -> dict[str, Any]:
    before = compute_dependencies([(phase.name, phase.depends_on) for phase in workflow.phases])
    phases = [
        PhaseInfo(
            name=phase.name,
            type=phase.type,
            label=phase.label,
            depends_on=list(before[phase.name]),
            trigger_rule=phase.trigger_rule,
        )
        for phase in workflow.phases
    ]
    return {
        "name": workflow.name,
        "description": workflow.description,
        "trigger": workflow.trigger,
        "enabled": enabled,
        "file": file,
        "phases": phases,
    }


# --- the order of lists -----------------------------------------------------------------------------------


class WorkflowRunCursor(NamedTuple):
    """A position in the list of runs."""

    rank: int
    at: int
    id: str


FIRST: Final = WorkflowRunCursor(0, 2**62, "")
"""Position before all runs. Start times decrease within a rank."""


def get_rank(status: str) -> int:
    """Return the position of a status in lists: running, paused, queued, then the rest."""
    return LIVE.index(status) if status in LIVE else len(LIVE)


def statuses_after(statuses: Iterable[str], place: WorkflowRunCursor) -> list[tuple[str, WorkflowRunCursor]]:
    """Return the statuses with runs after a cursor, each with the cursor in its own list."""
    cursors = []
    for status in (*LIVE, *ENDED):
        rank = get_rank(status)
        if status in statuses and rank >= place.rank:
            cursors.append((status, place if rank == place.rank else FIRST))
    return cursors


RUNS: Final = Keyset[WorkflowRunRow, WorkflowRunCursor](
    "workflow runs", FIRST, lambda row: (get_rank(row.status), row.started_at, row.id)
)
LOGS: Final = Keyset[LogCursor, LogCursor](
    "workflow logs", LogCursor(FIRST.at, FIRST.id), lambda place: place
)


# --- differences ------------------------------------------------------------------------------------------


def differences(left: Any, right: Any, path: str = "") -> list[ValueDifference]:
    """List the values in which two structures differ, by path."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        values: list[ValueDifference] = []
        for key in [*left, *(key for key in right if key not in left)]:
            inner = f"{path}.{key}" if path else str(key)
            values += differences(left.get(key), right.get(key), inner)
            if len(values) >= MAX_DIFFERENCES:
                break
        return values[:MAX_DIFFERENCES]
    return [] if left == right else [ValueDifference(path=path, left=left, right=right)]
