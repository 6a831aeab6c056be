"""Explanations of workflow runs and approvals. Times are microseconds.

This module is pure: no I/O, no clock, no randomness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.approvals.model import PENDING, REPLY, ApprovalRow
from perdure.diagnostics.explain import MANY, Explanation, at
from perdure.diagnostics.model import Why
from perdure.kernel.clock import to_seconds
from perdure.workflows.model import ENDED, PAUSED, QUEUED, RUNNING, SUCCEEDED, WAITING
from perdure.workflows.rows import WorkflowNodeRow, WorkflowRunRow

SHOWN_PHASES = 5
"""Limit of phases of a run that a sentence names."""


class WorkflowRunRows(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow run, its running or waiting nodes, its open approvals, and its place in the queue."""

    row: WorkflowRunRow
    nodes: Sequence[WorkflowNodeRow] = ()
    approvals: Sequence[ApprovalRow] = ()
    ahead: int = 0


def explain_workflow_run(rows: WorkflowRunRows, now: int) -> Why:
    """Explain the status of a workflow run."""
    row = rows.row
    rule, sentence = _explain(rows, now)
    return Why(
        id=row.id,
        kind="workflow",
        status=row.status,
        rule=rule,
        sentence=f"Workflow run {row.id} of {row.workflow_name} {sentence}",
        facts=_build_facts(rows),
    )


def _explain(rows: WorkflowRunRows, now: int) -> Explanation:
    row = rows.row
    if row.status in ENDED:
        return _explain_ended(row, now)
    if row.status == QUEUED:
        ahead = f"more than {MANY}" if rows.ahead > MANY else str(rows.ahead)
        until = "" if row.due_at is None else f" It is cancelled at {at(row.due_at, now)} unless it starts."
        return "queued", f"waits until fewer runs are running; {ahead} queued runs are ahead of it.{until}"
    if row.held:
        return "held", f"was paused by an operator. Resume it with `perdure workflow resume {row.id}`."
    if row.status == PAUSED and rows.approvals:
        return "waits_for_person", "waits for a person. " + " ".join(
            _format_question(approval, now) for approval in rows.approvals
        )
    return _explain_open(rows, now)


def _explain_ended(row: WorkflowRunRow, now: int) -> Explanation:
    when = at(row.finished_at or row.updated_at, now)
    if row.status == SUCCEEDED:
        return row.status, f"succeeded at {when}."
    reason = f": {row.error}" if row.error else ""
    again = f" `perdure workflow retry {row.id}` goes on at the first phase that is not done."
    return (
        row.status,
        f"{'failed' if row.status != 'cancelled' else 'was cancelled'} at {when}{reason}.{again}",
    )


def _format_question(row: ApprovalRow, now: int) -> str:
    verb = "reply" if row.kind == REPLY else "approve"
    text = " TEXT" if row.kind == REPLY else ""
    return (
        f"Gate {row.gate} asks since {at(row.created_at, now)}; answer with "
        f"`perdure approval {verb} {row.id}{text}`."
    )


def _explain_open(rows: WorkflowRunRows, now: int) -> Explanation:
    """Explain the phases of an open run."""
    children = [node for node in rows.nodes if node.child_run_id is not None and node.status == WAITING]
    timed = [node for node in rows.nodes if node.due_at is not None and node.status == WAITING]
    executed = [node for node in rows.nodes if node.status == RUNNING]
    if executed:
        named = [f"{node.label or node.node} (run {node.rollout_id})" for node in executed[:SHOWN_PHASES]]
        more = f" and {len(executed) - SHOWN_PHASES} more" if len(executed) > SHOWN_PHASES else ""
        return "executing", (
            f"executes {', '.join(named)}{more}. `perdure why {executed[0].rollout_id}` tells what that "
            "phase waits for."
        )
    if rows.approvals:
        return "waits_for_person", "waits for a person. " + " ".join(
            _format_question(approval, now) for approval in rows.approvals
        )
    if children:
        return "waits_for_workflow", f"waits for workflow run {children[0].child_run_id}, which it started."
    if timed:
        return "waits_for_time", f"waits in phase {timed[0].node} until {at(timed[0].due_at or now, now)}."
    return "going_on", "is about to go on: a server that executes workflows must run."


def _build_facts(rows: WorkflowRunRows) -> dict[str, Any]:
    row = rows.row
    facts = {
        "workflow_name": row.workflow_name,
        "trigger_id": row.trigger_id,
        "current_phase": row.current_phase,
        "restart_count": row.restart_count,
        "started_at": to_seconds(row.started_at),
        "finished_at": None if row.finished_at is None else to_seconds(row.finished_at),
        "error": row.error,
        "ahead": rows.ahead if row.status == QUEUED else None,
        "phases": [node.label or node.node for node in rows.nodes] or None,
        "approvals": [approval.id for approval in rows.approvals] or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


# --- approvals --------------------------------------------------------------------------------------------


def explain_approval(row: ApprovalRow, now: int) -> Why:
    """Explain why an approval waits, or how it was resolved."""
    rule, sentence = _explain_approval(row, now)
    facts = {
        "workflow_run_id": row.workflow_run_id,
        "gate": row.gate,
        "kind": row.kind,
        "assignees": row.assigned or None,
        "reminders": row.reminders,
        "expires_at": None if row.expires_at is None else to_seconds(row.expires_at),
        "responded_by": row.responded_by,
    }
    return Why(
        id=row.id,
        kind="approval",
        status=row.status,
        rule=rule,
        sentence=f"Approval {row.id} of workflow run {row.workflow_run_id} {sentence}",
        facts={name: value for name, value in facts.items() if value is not None},
    )


def _explain_approval(row: ApprovalRow, now: int) -> Explanation:
    if row.status == PENDING:
        who = ", ".join(row.assigned) or "anybody who may write"
        expiry = "" if row.expires_at is None else f" It expires at {at(row.expires_at, now)}."
        question = _format_question(row, now).replace(f"Gate {row.gate} asks", "It asks", 1)
        return "waits_for_person", f"waits for {who}. {question}{expiry}"
    by = f" by {row.responded_by}" if row.responded_by else ""
    when = "" if row.responded_at is None else f" at {at(row.responded_at, now)}"
    response = f": {' '.join(row.response.split())[:200]}" if row.response else ""
    return row.status, f"was {row.status}{by}{when}{response}."
